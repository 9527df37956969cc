// What the head serves; see dashboard/server/job_codec.cc for where it is written.

export interface Job {
  type: "SUBMISSION" | "DRIVER";
  job_id: string | null;
  submission_id: string | null;
  status: "PENDING" | "RUNNING" | "STOPPED" | "SUCCEEDED" | "FAILED";
  entrypoint: string;
  message: string | null;
  error_type: string | null;
  start_time: number | null;
  end_time: number | null;
  metadata: Record<string, string>;
  runtime_env: Record<string, unknown>;
  driver_node_id: string | null;
  driver_exit_code: number | null;
}

export interface Node {
  id: string;
  name: string;
  hostname: string;
  ip: string;
  alive: boolean;
  is_head_node: boolean;
  resources_total: Record<string, number>;
  resources_available: Record<string, number>;
  labels: Record<string, string>;
  started_time: number | null;
  lost_time: number | null;
  lost_reason: string | null;
  object_store_used: number;
  workers: number;
}

export interface Pending {
  what: string;
  count: number;
  resources: Record<string, number>;
  label_selector: Record<string, string>;
  explanation: string;
}

export interface Actor {
  id: string;
  state: string;
  name: string;
  class: string;
  node_id: string;
  restarts: number;
  pending_reason: string | null;
  death_reason: string | null;
}

export interface Group {
  id: string;
  name: string;
  strategy: string;
  state: string;
  bundles: { resources: Record<string, number>; node_id: string }[];
  pending_reason: string | null;
}

export interface Cluster {
  version: string;
  session_name: string;
  head_address: string;
  started_time: number | null;
  jobs_running: number;
  actors_alive: number;
  groups_created: number;
  nodes: Node[];
  pending: Pending[];
  actors: Actor[];
  groups: Group[];
}

export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
  get needsToken(): boolean {
    return this.status === 401 || this.status === 403;
  }
}

async function call(method: string, path: string, body?: unknown): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(path, { method, body: body === undefined ? undefined : JSON.stringify(body) });
  } catch {
    throw new ApiError(0, "The head does not answer.");
  }
  if (!response.ok) throw new ApiError(response.status, await response.text());
  return response;
}

export const getCluster = async (): Promise<Cluster> => (await call("GET", "/api/argosy/cluster")).json();
export const getJobs = async (): Promise<Job[]> => (await call("GET", "/api/jobs/")).json();
export const getJob = async (id: string): Promise<Job> => (await call("GET", `/api/jobs/${encodeURIComponent(id)}`)).json();
export const stopJob = async (id: string): Promise<{ stopped: boolean }> =>
  (await call("POST", `/api/jobs/${encodeURIComponent(id)}/stop`)).json();
export const getLog = async (id: string): Promise<string> =>
  (await (await call("GET", `/api/jobs/${encodeURIComponent(id)}/logs`)).json()).logs;
export const logIn = async (token: string): Promise<void> => void (await call("POST", "/api/argosy/login", { token }));
export const logOut = async (): Promise<void> => void (await call("POST", "/api/argosy/logout"));

export const isTerminal = (job: Job): boolean => job.status !== "PENDING" && job.status !== "RUNNING";
export const jobName = (job: Job): string => job.submission_id ?? job.job_id ?? "?";

import { useEffect, useState } from "preact/hooks";
import { getCluster, getJobs, logOut, type ApiError } from "./api";
import { ClusterPage } from "./cluster";
import { JobPage } from "./job";
import { JobsPage } from "./jobs";
import { LogInPage } from "./login";
import { usePoll } from "./poll";
import { Link, usePath } from "./router";

const PERIOD = 2000;

function Notice(props: { error: ApiError | null }) {
  if (!props.error || props.error.needsToken) return null;
  return (
    <div class="notice" role="status">
      {props.error.message} What you see is what was last known; trying again.
    </div>
  );
}

function Signed(props: { onLogOut: () => void }) {
  const path = usePath();
  const cluster = usePoll(getCluster, PERIOD);
  const jobs = usePoll(getJobs, PERIOD);
  const error = cluster.error ?? jobs.error;
  const denied = !!cluster.error?.needsToken || !!jobs.error?.needsToken;
  useEffect(() => {
    if (denied) props.onLogOut();
  }, [denied]);

  const id = path.startsWith("/jobs/") ? decodeURIComponent(path.slice("/jobs/".length)) : null;
  const onJobs = path.startsWith("/jobs");
  return (
    <>
      <header class="top">
        <Link to="/" class="brand">
          <svg viewBox="0 0 32 32" width="22" height="22" aria-hidden="true">
            <path d="M15 3v17H4z" class="sail-a" />
            <path d="M18 8v12h10z" class="sail-b" />
            <path d="M3 23h26l-4 6H7z" class="hull" />
          </svg>
          Argosy
        </Link>
        <nav>
          <Link to="/" current={!onJobs}>
            Cluster
          </Link>
          <Link to="/jobs" current={onJobs}>
            Jobs
          </Link>
        </nav>
        <span class="where" title={cluster.value?.session_name}>
          {cluster.value?.head_address}
        </span>
        <button
          class="quiet"
          onClick={async () => {
            await logOut().catch(() => undefined);
            props.onLogOut();
          }}
        >
          Log out
        </button>
      </header>
      <Notice error={error} />
      <main>
        {id !== null ? (
          <JobPage id={id} key={id} nodes={cluster.value?.nodes ?? []} />
        ) : onJobs ? (
          <JobsPage jobs={jobs.value} />
        ) : (
          <ClusterPage cluster={cluster.value} jobs={jobs.value} />
        )}
      </main>
    </>
  );
}

export function App() {
  const [signedOut, setSignedOut] = useState(false);
  return signedOut ? <LogInPage onDone={() => setSignedOut(false)} /> : <Signed onLogOut={() => setSignedOut(true)} />;
}

import { useState } from "preact/hooks";
import { getJob, isTerminal, stopJob, type Node } from "./api";
import { formatTime } from "./format";
import { StatePill, duration } from "./jobs";
import { LogView } from "./logview";
import { usePoll } from "./poll";
import { Link } from "./router";

export function JobPage(props: { id: string; nodes: Node[] }) {
  const [note, setNote] = useState("");
  const polled = usePoll(() => getJob(props.id), 1000, props.id);
  const job = polled.value;
  if (!job) {
    if (polled.error?.status === 404) {
      return (
        <section class="panel empty">
          <h2>{polled.error.message}</h2>
          <Link to="/jobs">All jobs</Link>
        </section>
      );
    }
    return <p class="muted">Asking the head…</p>;
  }
  const node = props.nodes.find((candidate) => candidate.id === job.driver_node_id);
  const metadata = Object.entries(job.metadata);
  return (
    <>
      <section class="panel job">
        <h2>
          <span class="cut">{props.id}</span> <StatePill job={job} />
          {!isTerminal(job) && job.type === "SUBMISSION" && (
            <button
              class="end danger"
              onClick={async () => {
                if (!window.confirm(`Stop ${props.id}?`)) return;
                try {
                  await stopJob(props.id);
                  setNote("Asked to stop.");
                } catch (error) {
                  setNote((error as Error).message);
                }
              }}
            >
              Stop
            </button>
          )}
        </h2>
        <pre class="words entrypoint">{job.entrypoint}</pre>
        <dl>
          <dt>Started</dt>
          <dd>{formatTime(job.start_time)}</dd>
          <dt>Ended</dt>
          <dd>{formatTime(job.end_time)}</dd>
          <dt>Ran for</dt>
          <dd>{duration(job)}</dd>
          {node && (
            <>
              <dt>Node</dt>
              <dd>{node.name}</dd>
            </>
          )}
          {job.driver_exit_code !== null && (
            <>
              <dt>Exit code</dt>
              <dd>{job.driver_exit_code}</dd>
            </>
          )}
          {metadata.map(([key, value]) => (
            <>
              <dt>{key}</dt>
              <dd>{value}</dd>
            </>
          ))}
        </dl>
        {job.message && <pre class={job.status === "FAILED" ? "words message failed" : "words message"}>{job.message}</pre>}
        {note && <p class="muted">{note}</p>}
      </section>
      {job.type === "SUBMISSION" && <LogView id={props.id} />}
    </>
  );
}

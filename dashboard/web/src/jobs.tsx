import { useState } from "preact/hooks";
import { jobName, type Job } from "./api";
import { formatDuration, formatTime } from "./format";
import { Link, go } from "./router";

export function StatePill(props: { job: Job }) {
  return <span class={`state ${props.job.status}`}>{props.job.status}</span>;
}

export function duration(job: Job): string {
  if (job.start_time === null) return "–";
  return formatDuration((job.end_time ?? Date.now()) - job.start_time);
}

function firstLine(text: string | null): string {
  return (text ?? "").split("\n", 1)[0];
}

export function JobTable(props: { jobs: Job[] }) {
  return (
    <div class="scroll">
      <table class="jobs">
        <thead>
          <tr>
            <th>Job</th>
            <th>State</th>
            <th>Entrypoint</th>
            <th>Started</th>
            <th>Ran for</th>
            <th>Message</th>
          </tr>
        </thead>
        <tbody>
          {props.jobs.map((job) => {
            const path = `/jobs/${encodeURIComponent(jobName(job))}`;
            return (
              <tr key={jobName(job)} data-job={jobName(job)} class="clickable" onClick={() => go(path)}>
                <td>
                  <Link to={path}>{jobName(job)}</Link>
                </td>
                <td>
                  <StatePill job={job} />
                </td>
                <td class="mono cut" title={job.entrypoint}>
                  {job.entrypoint}
                </td>
                <td class="nowrap">{formatTime(job.start_time)}</td>
                <td class="nowrap">{duration(job)}</td>
                <td class="muted cut" title={job.message ?? ""}>
                  {firstLine(job.message)}
                </td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}

export function JobsPage(props: { jobs: Job[] | null }) {
  const [filter, setFilter] = useState("");
  if (!props.jobs) return <p class="muted">Asking the head…</p>;
  if (props.jobs.length === 0) {
    return (
      <section class="panel empty">
        <h2>No jobs yet</h2>
        <p>Submit one from a shell:</p>
        <pre class="words">argosy job submit --address {location.origin} -- echo hello</pre>
      </section>
    );
  }
  const wanted = filter.toLowerCase();
  const jobs = [...props.jobs]
    .sort((a, b) => (b.start_time ?? 0) - (a.start_time ?? 0))
    .filter((job) => !wanted || [jobName(job), job.status, job.entrypoint].some((text) => text.toLowerCase().includes(wanted)));
  return (
    <section class="panel">
      <h2>
        Jobs
        <input class="end" type="search" placeholder="Filter by name, state, entrypoint" aria-label="Filter jobs" value={filter} onInput={(event) => setFilter(event.currentTarget.value)} />
      </h2>
      <JobTable jobs={jobs} />
      {jobs.length === 0 && <p class="muted">No job matches.</p>}
    </section>
  );
}

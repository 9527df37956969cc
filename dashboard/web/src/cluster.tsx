import type { Actor, Cluster, Group, Job, Node, Pending } from "./api";
import { formatAmount, formatDuration, formatResources, resourceName, sortResources } from "./format";
import { JobTable } from "./jobs";
import { Link } from "./router";

function Bar(props: { name: string; used: number; total: number }) {
  const share = props.total > 0 ? Math.min(1, Math.max(0, props.used / props.total)) : 0;
  return (
    <div class="resource">
      <span class="resource-name">{resourceName(props.name)}</span>
      <span class="bar" role="img" aria-label={`${Math.round(share * 100)}% used`}>
        <span class={share > 0.95 ? "fill full" : "fill"} style={{ width: `${share * 100}%` }} />
      </span>
      <span class="resource-amount">
        {formatAmount(props.name, props.used)} / {formatAmount(props.name, props.total)}
      </span>
    </div>
  );
}

function used(node: Node, name: string): number {
  return (node.resources_total[name] ?? 0) - (node.resources_available[name] ?? 0);
}

function NodeCard(props: { node: Node }) {
  const { node } = props;
  // The automatic id and host name are already on the card.
  const labels = Object.entries(node.labels).filter(([key]) => key !== "argosy.io/node-id" && key !== "argosy.io/hostname");
  return (
    <section class={node.alive ? "panel node" : "panel node lost"} data-node={node.name}>
      <h3>
        <span class={node.alive ? "dot ok" : "dot bad"} />
        {node.name}
        {node.is_head_node && <span class="tag">head</span>}
        <span class="muted small end">{node.ip}</span>
      </h3>
      {node.alive ? (
        <>
          {sortResources(Object.keys(node.resources_total)).map((name) => (
            <Bar key={name} name={name} used={used(node, name)} total={node.resources_total[name]} />
          ))}
          <p class="muted small">
            {node.workers} worker{node.workers === 1 ? "" : "s"}
            {node.started_time !== null && `, up ${formatDuration(Date.now() - node.started_time)}`}
          </p>
        </>
      ) : (
        <p class="small">
          Lost{node.lost_time !== null && ` ${formatDuration(Date.now() - node.lost_time)} ago`}
          {node.lost_reason && `: ${node.lost_reason}`}
        </p>
      )}
      {labels.length > 0 && (
        <p class="labels">
          {labels.map(([key, value]) => (
            <span class="tag" key={key} title={`${key}=${value}`}>
              {key}={value}
            </span>
          ))}
        </p>
      )}
    </section>
  );
}

function PendingList(props: { pending: Pending[] }) {
  if (props.pending.length === 0) return null;
  return (
    <section class="panel waiting" id="pending">
      <h2>Waiting for resources</h2>
      <ul>
        {props.pending.map((demand) => (
          <li key={demand.what + formatResources(demand.resources)}>
            <strong>
              {demand.count > 1 && `${demand.count} × `}
              {demand.what || "work"}
            </strong>{" "}
            <span class="muted">
              needs {formatResources(demand.resources)}
              {Object.entries(demand.label_selector).map(([key, value]) => `, ${key}=${value}`)}
            </span>
            <pre class="words">{demand.explanation}</pre>
          </li>
        ))}
      </ul>
    </section>
  );
}

function Tile(props: { name: string; value: string; of?: string }) {
  return (
    <div class="tile">
      <span class="tile-name">{props.name}</span>
      <span class="tile-value">
        {props.value}
        {props.of !== undefined && <span class="tile-of"> / {props.of}</span>}
      </span>
    </div>
  );
}

function Tiles(props: { cluster: Cluster; jobs: Job[] | null }) {
  const alive = props.cluster.nodes.filter((node) => node.alive);
  const names = sortResources(new Set(alive.flatMap((node) => Object.keys(node.resources_total))));
  const sum = (name: string, amount: (node: Node) => number) => formatAmount(name, alive.reduce((total, node) => total + amount(node), 0));
  const running = props.jobs?.filter((job) => job.status === "RUNNING").length ?? props.cluster.jobs_running;
  return (
    <div class="tiles">
      <Tile name="Nodes alive" value={String(alive.length)} of={String(props.cluster.nodes.length)} />
      {names
        .filter((name) => name === "CPU" || name === "GPU" || name === "memory")
        .map((name) => (
          <Tile key={name} name={`${resourceName(name)} used`} value={sum(name, (node) => used(node, name))} of={sum(name, (node) => node.resources_total[name] ?? 0)} />
        ))}
      <Tile name="Jobs running" value={String(running)} />
      <Tile name="Actors alive" value={String(props.cluster.actors_alive)} />
    </div>
  );
}

function nodeName(nodes: Node[], id: string): string {
  return nodes.find((node) => node.id === id)?.name ?? (id ? id.slice(0, 8) : "–");
}

function Actors(props: { actors: Actor[]; nodes: Node[] }) {
  if (props.actors.length === 0) return null;
  return (
    <section class="panel">
      <h2>Actors</h2>
      <div class="scroll">
        <table>
          <thead>
            <tr>
              <th>Class</th>
              <th>Name</th>
              <th>State</th>
              <th>Node</th>
              <th>Restarts</th>
              <th>Why</th>
            </tr>
          </thead>
          <tbody>
            {props.actors.slice(0, 200).map((actor) => (
              <tr key={actor.id}>
                <td class="mono">{actor.class || actor.id.slice(0, 8)}</td>
                <td>{actor.name || "–"}</td>
                <td>
                  <span class={`state ${actor.state}`}>{actor.state}</span>
                </td>
                <td>{nodeName(props.nodes, actor.node_id)}</td>
                <td>{actor.restarts}</td>
                <td class="muted">{actor.pending_reason ?? actor.death_reason ?? ""}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {props.actors.length > 200 && <p class="muted small">{props.actors.length - 200} more are not shown.</p>}
    </section>
  );
}

function Groups(props: { groups: Group[]; nodes: Node[] }) {
  if (props.groups.length === 0) return null;
  return (
    <section class="panel">
      <h2>Placement groups</h2>
      <div class="scroll">
        <table>
          <thead>
            <tr>
              <th>Group</th>
              <th>Strategy</th>
              <th>State</th>
              <th>Bundles</th>
              <th>Why</th>
            </tr>
          </thead>
          <tbody>
            {props.groups.map((group) => (
              <tr key={group.id}>
                <td>{group.name || group.id.slice(0, 8)}</td>
                <td>{group.strategy}</td>
                <td>
                  <span class={`state ${group.state}`}>{group.state}</span>
                </td>
                <td>
                  {group.bundles.map((bundle, index) => (
                    <div key={index} class="small">
                      {formatResources(bundle.resources)} <span class="muted">on {nodeName(props.nodes, bundle.node_id)}</span>
                    </div>
                  ))}
                </td>
                <td class="muted">{group.pending_reason ?? ""}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

export function ClusterPage(props: { cluster: Cluster | null; jobs: Job[] | null }) {
  const { cluster, jobs } = props;
  if (!cluster) return <p class="muted">Asking the head…</p>;
  const nodes = [...cluster.nodes].sort((a, b) => Number(b.alive) - Number(a.alive) || Number(b.is_head_node) - Number(a.is_head_node) || a.name.localeCompare(b.name));
  const recent = [...(jobs ?? [])].sort((a, b) => (b.start_time ?? 0) - (a.start_time ?? 0)).slice(0, 5);
  return (
    <>
      <Tiles cluster={cluster} jobs={jobs} />
      <PendingList pending={cluster.pending} />
      <h2>Nodes</h2>
      <div class="nodes">
        {nodes.map((node) => (
          <NodeCard key={node.id} node={node} />
        ))}
      </div>
      {recent.length > 0 && (
        <section class="panel">
          <h2>
            Recent jobs{" "}
            <Link to="/jobs" class="small end">
              All jobs
            </Link>
          </h2>
          <JobTable jobs={recent} />
        </section>
      )}
      <Actors actors={cluster.actors} nodes={cluster.nodes} />
      <Groups groups={cluster.groups} nodes={cluster.nodes} />
    </>
  );
}

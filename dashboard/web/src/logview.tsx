import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { getLog } from "./api";
import { followLog, type FollowState } from "./follow";
import { LogBuffer, plainText, spans } from "./log";

const LINE = 18; // px; the same in style.css
const MARGIN = 20; // lines drawn beyond what is visible

const STATES: Record<FollowState, string> = {
  connecting: "connecting",
  live: "live",
  broken: "connection lost, trying again",
  ended: "complete",
};

function Line(props: { text: string; wanted: string; current: boolean }) {
  const pieces = spans(props.text);
  const wanted = props.wanted.toLowerCase();
  return (
    <div class={props.current ? "line current" : "line"}>
      {pieces.map((piece, index) => {
        if (!wanted) return piece.className ? <span key={index} class={piece.className}>{piece.text}</span> : piece.text;
        const parts = [];
        const lower = piece.text.toLowerCase();
        let from = 0;
        for (let at = lower.indexOf(wanted); at >= 0; at = lower.indexOf(wanted, from)) {
          parts.push(piece.text.slice(from, at), <mark>{piece.text.slice(at, at + wanted.length)}</mark>);
          from = at + wanted.length;
        }
        parts.push(piece.text.slice(from));
        return <span key={index} class={piece.className}>{parts}</span>;
      })}
    </div>
  );
}

export function LogView(props: { id: string }) {
  const buffer = useMemo(() => new LogBuffer(), [props.id]);
  const [version, setVersion] = useState(0);
  const [state, setState] = useState<FollowState>("connecting");
  const [sticky, setSticky] = useState(true);
  const [view, setView] = useState({ top: 0, height: 400 });
  const [wanted, setWanted] = useState("");
  const [current, setCurrent] = useState(-1);
  const [failure, setFailure] = useState("");
  const box = useRef<HTMLDivElement>(null);
  const stick = useRef(true);

  useEffect(() => {
    let frame = 0;
    let waiting = "";
    const flush = () => {
      frame = 0;
      buffer.append(waiting);
      waiting = "";
      setVersion((old) => old + 1);
    };
    const take = (text: string) => {
      waiting += text;
      // A hidden page draws no frames; the text must not pile up.
      if (waiting.length > 1 << 20) flush();
      else if (!frame) frame = requestAnimationFrame(flush);
    };
    const stop = followLog(props.id, {
      onText: take,
      onGap: (bytes) => take(`[${bytes} bytes of this log are gone: it grew past its limit]\n`),
      onState: setState,
    });
    return () => {
      stop();
      cancelAnimationFrame(frame);
    };
  }, [props.id]);

  const lines = buffer.lines;
  // After each change the end stays in sight, unless the reader scrolled up.
  useEffect(() => {
    if (stick.current && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [version, sticky]);
  useEffect(() => {
    const measure = () => box.current && setView((old) => ({ ...old, height: box.current!.clientHeight }));
    measure();
    window.addEventListener("resize", measure);
    return () => window.removeEventListener("resize", measure);
  }, []);

  const follow = (on: boolean) => {
    stick.current = on;
    setSticky(on);
  };
  const matches = useMemo(() => {
    if (!wanted) return [];
    const lower = wanted.toLowerCase();
    const found: number[] = [];
    lines.forEach((line, index) => plainText(line).toLowerCase().includes(lower) && found.push(index));
    return found;
  }, [wanted, version]);
  const jump = (step: number) => {
    if (matches.length === 0 || !box.current) return;
    const next = current < 0 ? (step > 0 ? 0 : matches.length - 1) : (current + step + matches.length) % matches.length;
    setCurrent(next);
    follow(false);
    box.current.scrollTop = Math.max(0, matches[next] * LINE - box.current.clientHeight / 2);
  };

  const first = Math.max(0, Math.floor(view.top / LINE) - MARGIN);
  const last = Math.min(lines.length, Math.ceil((view.top + view.height) / LINE) + MARGIN);
  return (
    <section class="panel log" data-log-state={state} data-log-lines={buffer.dropped + lines.length}>
      <h2>
        Log
        <span class={`small muted follow ${state}`}>
          <span class={state === "live" ? "dot ok pulse" : state === "broken" ? "dot bad" : "dot"} />
          {STATES[state]} · {(buffer.dropped + lines.length).toLocaleString()} lines
        </span>
        <span class="end tools">
          <input
            type="search"
            placeholder="Search"
            aria-label="Search the log"
            value={wanted}
            onInput={(event) => {
              setWanted(event.currentTarget.value);
              setCurrent(-1);
            }}
            onKeyDown={(event) => event.key === "Enter" && jump(event.shiftKey ? -1 : 1)}
          />
          {wanted && (
            <span class="small muted">
              {current >= 0 ? `${current + 1} of ` : ""}
              {matches.length}
            </span>
          )}
          {wanted && (
            <>
              <button class="quiet" aria-label="Previous match" onClick={() => jump(-1)}>
                ↑
              </button>
              <button class="quiet" aria-label="Next match" onClick={() => jump(1)}>
                ↓
              </button>
            </>
          )}
          <button
            class="quiet"
            onClick={async () => {
              try {
                const url = URL.createObjectURL(new Blob([await getLog(props.id)], { type: "text/plain" }));
                const link = document.createElement("a");
                link.href = url;
                link.download = `${props.id}.log`;
                link.click();
                URL.revokeObjectURL(url);
                setFailure("");
              } catch (error) {
                setFailure((error as Error).message);
              }
            }}
          >
            Download
          </button>
        </span>
      </h2>
      {failure && <p class="error">{failure}</p>}
      {buffer.dropped > 0 && <p class="small muted">The first {buffer.dropped.toLocaleString()} lines are not kept by this page; Download has them.</p>}
      <div
        class="lines"
        ref={box}
        tabIndex={0}
        role="log"
        aria-label="Log of the job"
        onScroll={(event) => {
          const el = event.currentTarget;
          setView({ top: el.scrollTop, height: el.clientHeight });
          const atEnd = el.scrollHeight - el.scrollTop - el.clientHeight < LINE;
          // Growth moves the end away without a scroll by the reader: only an upward move lets go.
          if (atEnd !== stick.current && (atEnd || el.scrollTop < view.top)) follow(atEnd);
        }}
      >
        <div class="space" style={{ height: `${lines.length * LINE}px` }}>
          <div class="window" style={{ transform: `translateY(${first * LINE}px)` }}>
            {lines.slice(first, last).map((line, index) => (
              <Line key={first + index + buffer.dropped} text={line} wanted={wanted} current={current >= 0 && matches[current] === first + index} />
            ))}
          </div>
        </div>
        {lines.length === 0 && <p class="muted nothing">{state === "ended" ? "The job wrote nothing." : "Nothing yet."}</p>}
      </div>
      {!sticky && (
        <button class="to-end" onClick={() => follow(true)}>
          ↓ Follow the end
        </button>
      )}
    </section>
  );
}

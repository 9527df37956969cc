// Follows a job's log over a WebSocket. Binary frames: 8 bytes of offset (big endian), then the log's bytes from there; so a
// connection that breaks is opened again at the next byte, and nothing is lost or shown twice.

export type FollowState = "connecting" | "live" | "broken" | "ended";

export interface FollowEvents {
  onText(text: string): void;
  onGap(bytes: number): void;
  onState(state: FollowState): void;
}

const RETRY_MS = [300, 1000, 2000, 5000];

export function followLog(id: string, events: FollowEvents): () => void {
  let socket: WebSocket | null = null;
  let timer = 0;
  let offset = 0;
  let failures = 0;
  let stopped = false;
  let decoder = new TextDecoder("utf-8");

  function open(): void {
    events.onState(failures === 0 ? "connecting" : "broken");
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    socket = new WebSocket(`${scheme}://${location.host}/api/jobs/${encodeURIComponent(id)}/logs/tail?format=bytes&offset=${offset}`);
    socket.binaryType = "arraybuffer";
    socket.onopen = () => {
      failures = 0;
      events.onState("live");
    };
    socket.onmessage = (message: MessageEvent<ArrayBuffer>) => {
      const begin = Number(new DataView(message.data).getBigUint64(0));
      const bytes = new Uint8Array(message.data, 8);
      if (begin > offset) {
        events.onGap(begin - offset);
        decoder = new TextDecoder("utf-8");
      }
      events.onText(decoder.decode(bytes, { stream: true }));
      offset = begin + bytes.length;
    };
    socket.onclose = (event) => {
      if (stopped) return;
      if (event.code === 1000) {
        events.onText(decoder.decode());
        events.onState("ended");
        return;
      }
      events.onState("broken");
      timer = window.setTimeout(open, RETRY_MS[Math.min(failures++, RETRY_MS.length - 1)]);
    };
  }

  open();
  return () => {
    stopped = true;
    window.clearTimeout(timer);
    socket?.close();
  };
}

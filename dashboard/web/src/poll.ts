import { useEffect, useState } from "preact/hooks";
import { ApiError } from "./api";

export interface Polled<T> {
  value: T | null;
  error: ApiError | null;
}

// Asks again `period` ms after each answer, for as long as the page is looked at. `key` starts anew.
export function usePoll<T>(ask: () => Promise<T>, period: number, key: unknown = 0): Polled<T> {
  const [state, setState] = useState<Polled<T>>({ value: null, error: null });
  useEffect(() => {
    let ended = false;
    let timer = 0;
    setState({ value: null, error: null });
    async function round() {
      if (!document.hidden) {
        try {
          const value = await ask();
          if (!ended) setState({ value, error: null });
        } catch (error) {
          // What was last known stays on the page, marked as old.
          if (!ended) setState((old) => ({ value: old.value, error: error instanceof ApiError ? error : new ApiError(0, String(error)) }));
        }
      }
      if (!ended) timer = window.setTimeout(round, period);
    }
    round();
    const wake = () => {
      if (document.hidden) return;
      window.clearTimeout(timer);
      round();
    };
    document.addEventListener("visibilitychange", wake);
    return () => {
      ended = true;
      window.clearTimeout(timer);
      document.removeEventListener("visibilitychange", wake);
    };
  }, [key]);
  return state;
}

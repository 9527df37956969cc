import { useState } from "preact/hooks";
import { ApiError, logIn } from "./api";

export function LogInPage(props: { onDone: () => void }) {
  const [token, setToken] = useState("");
  const [error, setError] = useState("");
  const [busy, setBusy] = useState(false);
  return (
    <div class="login">
      <form
        class="panel"
        onSubmit={async (event) => {
          event.preventDefault();
          setBusy(true);
          setError("");
          try {
            await logIn(token.trim());
            props.onDone();
          } catch (failure) {
            const wrong = failure instanceof ApiError && failure.needsToken;
            setError(wrong ? "This is not the cluster's token." : (failure as Error).message);
          }
          setBusy(false);
        }}
      >
        <h1>Argosy</h1>
        <label for="token">Cluster token</label>
        <input id="token" type="password" autocomplete="current-password" autofocus value={token} onInput={(event) => setToken(event.currentTarget.value)} />
        <p class="hint">
          It is in <code>~/.argosy/token</code> of the user who started the head:
          <br />
          <code>cat ~/.argosy/token</code>
        </p>
        {error && (
          <p class="error" role="alert">
            {error}
          </p>
        )}
        <button type="submit" disabled={busy || token.trim() === ""}>
          Log in
        </button>
      </form>
    </div>
  );
}

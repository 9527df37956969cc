// The lines of a log, and how one of them is shown.

export const LINES_MAX = 200_000;

// Bounded: the oldest lines go first, and how many went is kept.
export class LogBuffer {
  lines: string[] = [];
  dropped = 0;
  private partial = false;

  append(text: string): void {
    if (text.length === 0) return;
    const pieces = text.split("\n");
    if (this.partial) this.lines[this.lines.length - 1] += pieces[0];
    else this.lines.push(pieces[0]);
    for (let i = 1; i < pieces.length; i++) this.lines.push(pieces[i]);
    // A text that ends with a newline leaves an empty last line: the next text begins it.
    if (pieces[pieces.length - 1] === "") {
      this.lines.pop();
      this.partial = false;
    } else {
      this.partial = true;
    }
    if (this.lines.length > LINES_MAX * 1.1) {
      const extra = this.lines.length - LINES_MAX;
      this.lines.splice(0, extra);
      this.dropped += extra;
    }
  }
}

export interface Span {
  text: string;
  className: string;
}

const SHOWN_MAX = 4000;
// eslint-disable-next-line no-control-regex
const ESCAPE = /\x1b\[([0-9;]*)([A-Za-z])/g;
const COLOURS = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"];

// What a terminal would leave: after a carriage return the line is written again.
export function visibleText(line: string): string {
  const text = line.endsWith("\r") ? line.slice(0, -1) : line;
  return text.slice(text.lastIndexOf("\r") + 1);
}

export const plainText = (line: string): string => visibleText(line).replace(ESCAPE, "");

// The line in pieces of one colour; escape sequences that are not colours are dropped.
export function spans(line: string): Span[] {
  let text = visibleText(line);
  const cut = text.length > SHOWN_MAX;
  if (cut) text = text.slice(0, SHOWN_MAX);
  const result: Span[] = [];
  let colour = "";
  let bold = false;
  let from = 0;
  const push = (to: number) => {
    if (to > from) result.push({ text: text.slice(from, to), className: [colour && `ansi-${colour}`, bold && "ansi-bold"].filter(Boolean).join(" ") });
  };
  for (const match of text.matchAll(ESCAPE)) {
    push(match.index!);
    from = match.index! + match[0].length;
    if (match[2] !== "m") continue;
    for (const code of (match[1] || "0").split(";").map(Number)) {
      if (code === 0) {
        colour = "";
        bold = false;
      } else if (code === 1) bold = true;
      else if (code === 22) bold = false;
      else if (code === 39) colour = "";
      else if (code >= 30 && code <= 37) colour = COLOURS[code - 30];
      else if (code >= 90 && code <= 97) colour = COLOURS[code - 90];
    }
  }
  push(text.length);
  if (cut) result.push({ text: ` … (${line.length - SHOWN_MAX} more characters)`, className: "muted" });
  return result;
}

const BYTES = new Set(["memory", "object_store_memory"]);

export function formatBytes(bytes: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (bytes >= 1024 && unit < units.length - 1) {
    bytes /= 1024;
    unit++;
  }
  return `${bytes >= 100 || unit === 0 ? bytes.toFixed(0) : bytes.toFixed(1)} ${units[unit]}`;
}

export function formatAmount(name: string, amount: number): string {
  if (BYTES.has(name)) return formatBytes(amount);
  return String(Math.round(amount * 10000) / 10000);
}

export const resourceName = (name: string): string => name.replace("object_store_memory", "object store");

// CPU, GPU, memory and object store first, then the rest by name.
export function sortResources(names: Iterable<string>): string[] {
  const order = ["CPU", "GPU", "memory", "object_store_memory"];
  const place = (name: string) => (order.includes(name) ? order.indexOf(name) : order.length);
  return [...names].sort((a, b) => place(a) - place(b) || a.localeCompare(b));
}

export function formatResources(resources: Record<string, number>): string {
  const names = sortResources(Object.keys(resources));
  return names.length === 0 ? "no resources" : names.map((name) => `${formatAmount(name, resources[name])} ${resourceName(name)}`).join(", ");
}

export function formatTime(millis: number | null): string {
  if (millis === null) return "–";
  const date = new Date(millis);
  const today = new Date().toDateString() === date.toDateString();
  const time = date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
  return today ? time : `${date.toLocaleDateString()} ${time}`;
}

export function formatDuration(millis: number): string {
  const seconds = Math.max(0, Math.round(millis / 1000));
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${seconds % 60} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

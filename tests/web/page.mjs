// Drives the page in headless Chromium: node page.mjs URL TOKEN JOB LAST_LINE [SCREENSHOT_FOLDER]. Prints what it saw as one line of JSON.
import { createRequire } from "node:module";
import { dirname, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const root = resolve(dirname(fileURLToPath(import.meta.url)), "../..");
const { chromium } = createRequire(resolve(root, "dashboard/web/package.json"))("playwright-core");
const [url, token, job, lastLine, screenshots] = process.argv.slice(2);

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"],
});
const context = await browser.newContext({ viewport: { width: 1280, height: 800 } });
const page = await context.newPage();
const seen = { requests: [], errors: [], sockets: [] };
page.on("request", (request) => seen.requests.push(request.url()));
page.on("pageerror", (error) => seen.errors.push(error.message));
page.on("console", (message) => message.type() === "error" && !/status of 40[13]/.test(message.text()) && seen.errors.push(message.text()));

// The first connection of the followed log breaks after three messages.
let broken = false;
await page.routeWebSocket(/logs\/tail/, (socket) => {
  seen.sockets.push(socket.url());
  const server = socket.connectToServer();
  let messages = 0;
  server.onMessage((message) => {
    socket.send(message);
    if (!broken && ++messages === 3) {
      broken = true;
      server.close();
      socket.close({ code: 4000 });
    }
  });
});

const shot = async (name) => screenshots && (await page.screenshot({ path: `${screenshots}/${name}.png`, fullPage: true }));
const lines = () => page.$eval("[data-log-lines]", (element) => Number(element.getAttribute("data-log-lines")));
const box = () => page.$eval(".lines", (element) => ({ top: element.scrollTop, height: element.clientHeight, all: element.scrollHeight }));
const until = async (condition, what) => {
  for (const deadline = Date.now() + 60_000; ; ) {
    if (await condition()) return;
    if (Date.now() > deadline) throw new Error(`not within a minute: ${what}`);
    await new Promise((done) => setTimeout(done, 50));
  }
};
const atEnd = async () => {
  const { top, height, all } = await box();
  return all > height && top + height >= all - 2;
};

try {
  await page.goto(url);
  await page.waitForSelector("#token");
  await page.fill("#token", "wrong");
  await page.click("button[type=submit]");
  await page.waitForSelector(".error");
  seen.wrongToken = await page.textContent(".error");
  await page.fill("#token", token);
  await page.click("button[type=submit]");
  await page.waitForSelector(".node .resource");
  seen.cookieVisible = await page.evaluate(() => document.cookie);
  seen.node = await page.textContent(".node");
  await shot("cluster");

  await page.click("nav a[href='/jobs']");
  await page.waitForSelector(`tr[data-job='${job}']`);
  seen.row = await page.textContent(`tr[data-job='${job}']`);
  await page.click(`tr[data-job='${job}'] a`);
  await page.waitForSelector(".line");

  // More lines than fit: the end stays in sight while they come.
  await until(async () => (await atEnd()) && (await lines()) > 60, "a log longer than its box, at its end");
  const before = await box();
  await until(async () => (await box()).all > before.all && (await atEnd()), "the log scrolls on");
  seen.stateWhileRunning = await page.$eval("[data-log-state]", (element) => element.getAttribute("data-log-state"));
  seen.jobWhileRunning = await page.textContent(".job .state");
  await shot("job");

  // A reader who scrolled up is left alone.
  await page.hover(".lines");
  await page.mouse.wheel(0, -400);
  await page.waitForSelector(".to-end");
  const up = await box();
  await until(async () => (await box()).all > up.all + 36, "more lines below");
  seen.movedWhileReading = (await box()).top !== up.top;
  await page.click(".to-end");
  await until(atEnd, "back at the end");

  await page.fill(".log input[type=search]", "line 10 ");
  await page.keyboard.press("Enter");
  await page.waitForSelector(".line.current mark");
  seen.found = await page.textContent(".line.current");
  await page.fill(".log input[type=search]", "");

  await page.waitForSelector("[data-log-state=ended]", { timeout: 60_000 });
  seen.lines = await lines();
  const waiting = page.waitForEvent("download");
  await page.click("text=Download");
  const chunks = [];
  for await (const chunk of await (await waiting).createReadStream()) chunks.push(chunk);
  seen.downloaded = Buffer.concat(chunks).toString();
  if (await page.$(".to-end")) await page.click(".to-end");
  await until(async () => ((await page.textContent(".window")) ?? "").includes(lastLine), "the last line");
  await page.waitForSelector(".job .state.SUCCEEDED");
  seen.job = await page.textContent(".job .state");
  console.log(JSON.stringify(seen));
} catch (error) {
  await shot("failed");
  console.error(error);
  console.error(JSON.stringify(seen));
  process.exitCode = 1;
} finally {
  await browser.close();
}

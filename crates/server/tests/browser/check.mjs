// Looks at the pages of a server in Chromium, as tests/browser.rs asks: `node check.mjs PLAN`, where PLAN is JSON:
//   modules    folder with node_modules
//   chromium   the browser
//   base       address of the server
//   shots      folder for screenshots; empty: none are taken
//   visit      addresses of pages to look at: in two widths, light and dark
//   brief      true: wide and light, narrow and dark only
//   timed      address of a page that is opened five times; the smallest time is a line "timed MILLISECONDS BYTES" on standard error
//   walk       true: clicks through the pages, asks "what if" by keyboard
//   token      a token to sign in with, after a wrong one
//   issuer     an identity provider that signs everybody in
// Every finding is a line on standard output; the exit status is 1 if there is one.

import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { createRequire } from "node:module";

const plan = JSON.parse(process.argv[2]);
const require = createRequire(plan.modules + "/");
const { chromium } = require("playwright-core");
const axe = fs.readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

const WIDTHS = [1280, 390];
const THEMES = ["light", "dark"];
const ELSEWHERE = "http://elsewhere.test/";

const findings = new Set();
const find = (text) => findings.add(text);
const expect = (ok, text) => ok || find(text);
const pathOf = (page) => page.url().slice(plan.base.length) || "/";

const profile = fs.mkdtempSync(path.join(os.tmpdir(), "linkwise-browser-"));
const context = await chromium.launchPersistentContext(profile, {
  executablePath: plan.chromium,
  headless: true,
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync"],
});
const page = context.pages()[0] ?? await context.newPage();
page.setDefaultTimeout(20_000);
const opened = new Set(); // pages of problems have the status of the problem, which Chromium reports on the console
page.on("console", (m) => {
  if (["error", "warning"].includes(m.type()) && !(m.text().includes("Failed to load resource") && opened.has(m.location().url))) {
    find(`${pathOf(page)}: the console says: ${m.text()}`);
  }
});
page.on("pageerror", (e) => find(`${pathOf(page)}: ${e}`));
page.on("dialog", (d) => { find(`${pathOf(page)}: a dialog opened: ${d.message()}`); d.dismiss(); });
page.on("request", (r) => {
  if (r.isNavigationRequest()) opened.add(r.url());
  if (!r.url().startsWith(plan.base + "/") && !r.url().startsWith(ELSEWHERE) && !(plan.issuer && r.url().startsWith(plan.issuer + "/"))) find(`a request went to ${r.url()}`);
});

/// What holds of every page.
async function look(name) {
  const at = `${name} (${page.viewportSize().width} pixels)`;
  const facts = await page.evaluate(() => ({
    h1: document.querySelectorAll("h1").length,
    main: document.querySelectorAll("main").length,
    lang: document.documentElement.lang,
    title: document.title,
    scripts: document.scripts.length,
    styles: document.querySelectorAll("style, [style]").length,
    wide: document.documentElement.scrollWidth - innerWidth,
    cookie: document.cookie,
  }));
  expect(facts.h1 === 1 && facts.main === 1 && facts.lang && facts.title, `${at}: ${JSON.stringify(facts)}`);
  expect(facts.scripts === 0 && facts.styles === 0, `${at}: it has scripts or inline styles`);
  expect(facts.wide <= 0, `${at}: it is ${facts.wide} pixels wider than the window`);
  expect(facts.cookie === "", `${at}: a script can read a cookie`);
  const judged = await page.evaluate(async (source) => {
    (0, eval)(source);
    const found = await axe.run(document, { resultTypes: ["violations"] });
    return found.violations.map((v) => `${v.id}: ${v.help}: ${v.nodes.slice(0, 3).map((n) => `${n.target} ${n.failureSummary}`).join("; ")}`);
  }, axe);
  for (const v of judged) find(`${at}: ${v}`);
}

async function shot(name) {
  if (!plan.shots) return;
  fs.mkdirSync(plan.shots, { recursive: true });
  const file = name.replace(/[^a-z0-9]+/gi, "-").replace(/^-+|-+$/g, "").slice(0, 60) || "map";
  await page.screenshot({ path: path.join(plan.shots, `${file}.png`), fullPage: true });
}

async function visit(address) {
  for (const theme of THEMES) {
    await page.emulateMedia({ colorScheme: theme });
    for (const width of WIDTHS) {
      if (plan.brief && (theme === "dark") !== (width === 390)) continue;
      await page.setViewportSize({ width, height: 900 });
      const answer = await page.goto(plan.base + address);
      expect(answer.headers()["content-type"].startsWith("text/html"), `${address}: ${answer.headers()["content-type"]}`);
      await look(`${address} (${theme})`);
      await shot(`${plan.name}-${address === "/" ? "map" : address}-${width}-${theme}`);
    }
  }
}

/// The smallest time until a page is drawn, and the bytes that it came in.
async function time(address) {
  await page.setViewportSize({ width: 1280, height: 900 });
  let least = Infinity, bytes = 0;
  for (let i = 0; i < 5; i++) {
    await page.goto(plan.base + address);
    const [t, n] = await page.evaluate(async () => {
      await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
      const { startTime, transferSize } = performance.getEntriesByType("navigation")[0];
      return [performance.now() - startTime, transferSize];
    });
    [least, bytes] = [Math.min(least, t), n];
  }
  console.error(`timed ${least} ${bytes}`);
}

/// Presses Tab until an element has the focus; the focus must be visible at every step.
async function tabTo(selector, steps = 60) {
  for (let i = 0; i < steps; i++) {
    await page.keyboard.press("Tab");
    const now = await page.evaluate((s) => {
      const e = document.activeElement, style = getComputedStyle(e);
      return { there: e.matches(s), seen: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0, what: e.outerHTML.slice(0, 80) };
    }, selector);
    expect(now.seen, `${pathOf(page)}: the focus on ${now.what} is invisible`);
    if (now.there) return;
  }
  find(`${pathOf(page)}: Tab does not reach ${selector}`);
}

/// Clicks through every page of the navigation, then asks "what if" without a pointer, and opens a job from the map.
async function walk() {
  await page.setViewportSize({ width: 1280, height: 900 });
  await page.goto(plan.base + "/");
  const names = await page.getByRole("navigation", { name: "Pages" }).getByRole("link").allTextContents();
  expect(names.length >= 3, `the navigation has ${names}`);
  for (const name of names) {
    await page.getByRole("navigation", { name: "Pages" }).getByRole("link", { name, exact: true }).click();
    const current = page.locator("nav a[aria-current=page]");
    expect((await current.textContent()) === name, `after a click on ${name} the page is ${pathOf(page)}`);
    await look(`the page ${name}`);
  }
  await page.goto(plan.base + "/what-if");
  await tabTo("input[name=gpus]");
  await page.keyboard.type("8");
  await page.keyboard.press("Enter");
  await page.waitForURL(/gpus=8/);
  const heading = await page.getByRole("heading", { level: 2 }).first().textContent();
  expect(/GB\/s/.test(heading), `the answer to "what if" begins with ${heading}`);
  await look("the answer");
  await page.goto(plan.base + "/");
  const job = page.locator("table a[href^='/jobs/']").first();
  const id = await job.textContent();
  await job.click();
  expect((await page.getByRole("heading", { level: 1 }).textContent()).includes(id), `the page of job ${id}`);
  await look("the page of a job");
}

/// Signs in with a wrong and a right token, tries what a foreign page could do, and signs out.
async function session() {
  await page.setViewportSize({ width: 1280, height: 900 });
  await page.goto(plan.base + "/");
  await look("the form for a token");
  await page.fill("input[name=token]", "lwt_" + "0".repeat(64));
  await page.getByRole("button", { name: "Sign in" }).click();
  expect(await page.getByRole("alert").count() === 1, "a wrong token gets no message");
  await look("a wrong token");
  await shot(`${plan.name}-wrong-token`);
  expect((await context.cookies()).length === 0, "a wrong token sets a cookie");
  await tabTo("input[name=token]");
  await page.keyboard.type(plan.token);
  await page.keyboard.press("Enter");
  await page.waitForURL(plan.base + "/");
  const [cookie, ...more] = await context.cookies();
  expect(cookie?.httpOnly && cookie.sameSite === "Strict" && more.length === 0, `the cookies are ${JSON.stringify([cookie, ...more])}`);
  await look("the map after signing in");
  await shot(`${plan.name}-signed-in`);

  // A page of another site: its forms change nothing, and its links arrive without the cookie.
  await page.route(ELSEWHERE + "**", (r) => r.fulfill({
    contentType: "text/html",
    body: `<!doctype html><title>x</title><form id=f method=post action="${plan.base}/logout"><button>out</button></form>
      <form id=g method=post action="${plan.base}/login"><input name=token value="${plan.token}"></form><a href="${plan.base}/">in</a>`,
  }));
  for (const form of ["f", "g"]) {
    await page.goto(ELSEWHERE);
    const [answer] = await Promise.all([
      page.waitForResponse((r) => r.url().startsWith(plan.base)),
      page.evaluate((id) => document.getElementById(id).submit(), form),
    ]);
    expect(answer.status() === 403, `a form of another site gets ${answer.status()}`);
    await page.waitForURL(plan.base + "/**");
    expect((await context.cookies(plan.base)).length === 1, "a form of another site changes the session");
  }
  await page.goto(ELSEWHERE);
  await page.getByRole("link").click();
  expect(await page.locator("input[name=token]").count() === 1, "a link of another site arrives signed in");

  await page.goto(plan.base + "/what-if");
  await page.getByRole("button", { name: "Sign out" }).click();
  await page.waitForLoadState();
  expect((await context.cookies(plan.base)).length === 0, "the cookie is there after signing out");
  await page.goto(plan.base + "/suspects");
  expect(await page.locator("input[name=token]").count() === 1, "pages open after signing out");
}

async function issuer() {
  await page.setViewportSize({ width: 390, height: 800 });
  await page.goto(plan.base + "/");
  await look("the form with an identity provider");
  await shot(`${plan.name}-form`);
  await page.getByRole("link", { name: "Sign in with" }).click();
  await page.waitForURL(plan.base + "/");
  expect(await page.getByText("oidc:ann").count() === 1, "the page does not name who signed in");
  await look("the map after signing in with an identity provider");
  const own = (await context.cookies(plan.base)).map((c) => [c.name, c.httpOnly, c.sameSite].join(" "));
  expect(own.join() === "linkwise_token true Strict", `the cookies are ${own}`);
}

try {
  for (const address of plan.visit ?? []) await visit(address);
  if (plan.timed) await time(plan.timed);
  if (plan.walk) await walk();
  if (plan.token) await session();
  if (plan.issuer) await issuer();
} catch (e) {
  find(`${pathOf(page)}: ${e.stack ?? e}`);
} finally {
  await context.close();
  fs.rmSync(profile, { recursive: true, force: true });
}
for (const f of findings) console.log(f);
process.exit(findings.size === 0 ? 0 : 1);

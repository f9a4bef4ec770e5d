// Check the built site for accessibility (axe-core), overflow and requests to other hosts, in light and dark, on a wide
// and a narrow screen.
//
//     node axe.mjs SITE [PAGE ...]      PAGE as in the site: "" is home, "results" is results/index.html; default all
//
// Copy it into a folder with `npm install axe-core playwright-core`. It drives Chromium (CHROMIUM, /usr/bin/chromium),
// writes a screenshot of each page into the present folder, and ends with the number of violations.
import { readFileSync, readdirSync } from "node:fs"
import { createServer } from "node:http"
import { createRequire } from "node:module"
import { dirname, extname, join, relative, resolve } from "node:path"
import { chromium } from "playwright-core"

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8")
const site = resolve(process.argv[2])
const all = readdirSync(site, { recursive: true }).filter((name) => name.endsWith("index.html"))
const pages = process.argv.length > 3 ? process.argv.slice(3) : all.map((name) => dirname(name).replace(/^\.$/, "")).sort()
const types = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml" }
const server = createServer((request, response) => {
  const name = decodeURIComponent(new URL(request.url, "http://localhost").pathname)
  try {
    const path = join(site, name.endsWith("/") ? `${name}index.html` : name)
    const body = readFileSync(path)
    response.writeHead(200, { "Content-Type": types[extname(path)] ?? "application/octet-stream" }).end(body)
  } catch {
    response.writeHead(404).end()
  }
})
await new Promise((done) => server.listen(0, "127.0.0.1", done))
const home = `http://127.0.0.1:${server.address().port}/`
const quiet = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: quiet })
const found = []
for (const colorScheme of ["light", "dark"]) {
  for (const width of [1400, 390]) {
    const context = await browser.newContext({ colorScheme, viewport: { width, height: 1000 } })
    const page = await context.newPage()
    page.setDefaultTimeout(180000)
    page.on("request", (request) => {
      if (!request.url().startsWith(home) && !/^(data|blob):/.test(request.url())) found.push(`${page.url()} requests ${request.url()}`)
    })
    for (const name of pages) {
      const where = `${name} ${width} ${colorScheme}`
      await page.goto(`${home}${name}${name && "/"}`)
      await page.evaluate(() => new Promise(requestAnimationFrame))
      const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth)
      if (over > 0) found.push(`${where}: ${over} pixels wider than the screen`)
      await page.screenshot({ path: `${(name || "home").replaceAll("/", "_")}_${width}_${colorScheme}.png` })
      await page.evaluate(axe)
      const { violations } = await page.evaluate(() => axe.run(document, { resultTypes: ["violations"] }))
      for (const { id, help, nodes } of violations) {
        found.push(`${where}: ${id}: ${help}: ${nodes.map((node) => node.html.slice(0, 120)).slice(0, 3).join(" | ")}`)
      }
    }
    await context.close()
  }
}
await browser.close()
server.close()
console.log([...found, `${found.length} findings on ${pages.length} pages of ${relative(".", site)}`].join("\n"))
process.exitCode = found.length ? 1 : 0

// What assistive technology needs and the theme leaves out. Parts of a page appear after it is loaded, so all are looked
// at again whenever the page changes.
function complete() {
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search")
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap, pre > code, math[display=block]")) {
    const scrolls = box.scrollWidth > box.clientWidth
    if (scrolls !== box.hasAttribute("tabindex")) box.toggleAttribute("tabindex", scrolls)
    if (scrolls) box.tabIndex = 0
  }
  const seen = new Map() // by name in lower case
  for (const nav of document.querySelectorAll("nav")) {
    const label = document.getElementById(nav.getAttribute("aria-labelledby"))?.textContent
    const name = (nav.dataset.name ??= (nav.getAttribute("aria-label") ?? label ?? "Code block").trim())
    const count = (seen.get(name.toLowerCase()) ?? 0) + 1
    seen.set(name.toLowerCase(), count)
    const own = count > 1 ? `${name} ${count}` : name
    if (nav.getAttribute("aria-label") !== own) {
      nav.setAttribute("aria-label", own)
      nav.removeAttribute("aria-labelledby")
    }
  }
}

new MutationObserver(complete).observe(document.documentElement, { childList: true, subtree: true })
addEventListener("load", complete)
addEventListener("resize", complete)

const search = document.querySelector(".md-search")
if (search) search.ariaLabel = "Search"

// What scrolls can be reached by the keyboard. The theme wraps tables later, and takes code out where no mouse is found.
const reach = () => {
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap, pre > code")) if (box.tabIndex < 0) box.tabIndex = 0
}
new MutationObserver(reach).observe(document.body, { subtree: true, childList: true, attributeFilter: ["tabindex"] })
reach()

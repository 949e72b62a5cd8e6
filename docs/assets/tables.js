// A table that is wider than its page is scrolled with the keyboard too.
document$.subscribe(() => requestAnimationFrame(() => {
  for (const each of document.querySelectorAll(".md-typeset__scrollwrap"))
    if (each.scrollWidth > each.clientWidth) each.tabIndex = 0;
}));

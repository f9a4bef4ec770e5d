"""The colours, lines and markers of all plots, and how a page shows them."""

# Okabe and Ito's palette, distinct for every kind of colour vision; without its yellow, which is faint on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LINES = ("-", "--", ":", "-.")
MARKERS = "osD^vP*"

# Colours of text, lines and background follow the page, in light and in dark.
PAGE_COLOURS = {
    "#000000": "currentColor",
    "#262626": "currentColor",
    "#595959": "var(--faint)",
    "#e6e6e6": "var(--rule)",
    "#ffffff": "var(--panel)",
    "#0072b2": "var(--blue)",  # too dark on a dark page
}

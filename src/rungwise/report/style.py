"""How a report's pictures look. Colour-blind readers tell their colours (Okabe and Ito's) apart."""

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
DASHES = ("-", "--", ":")
STYLE = {
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "legend.frameon": False,
    "figure.facecolor": "white",
    "savefig.dpi": 150,
}
WIDTH = 10.0
POINTS = {"textcoords": "offset points", "fontsize": 9}

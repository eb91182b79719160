"""What the paper reports of its inverse problems, to stand beside our numbers."""

# Table 1: Jeffreys divergence, mean and spread of three runs (d = 4096, 800,000 simulations).
JEFFREYS = {"msign": (56.77, 0.15), "asvgd": (3372.0, 21.0)}

# Appendix F: the Jeffreys divergence at the start and the end of stage 6.
LEARNING = (252.0, 56.8)

# Appendix F, last table: letters by eye, scales 1 to 6.
LETTERS: dict[str, dict[str, str]] = {
    "synthetic": {
        "glow": "TFFFFF",
        "msign-snn": "TTTTII",
        "msign-kl-s": "TFFFIF",
        "msign-kl": "TTTTTT",
        "msign-as-s": "TFFFFF",
        "msign-as": "TTTIII",
        "msign": "TTTTTT",
    },
    "elliptic": {
        "glow": "FFFFFF",
        "msign-snn": "FFFFFF",
        "msign-kl-s": "FFFFFF",
        "msign-kl": "FIIIII",
        "msign-as-s": "FFFFFF",
        "msign-as": "FIITII",
        "msign": "TTTTTT",
    },
}

# Figures 3 and 4 and appendix F, in the paper's words.
CAPTURED: dict[str, dict[str, str]] = {
    "synthetic": {
        "msign": "both modes at all scales",
        "hmc": "both modes, imbalanced as the dimension increases",
        "svgd": "one mode as the dimension increases",
        "asvgd": "one mode as the dimension increases; not both at l = 1",
        "psvgd": "both modes, a bit biased at l = 6",
    },
    "elliptic": {
        "msign": "both modes at all scales",
        "hmc": "both modes, imbalanced at some scales; failed at l = 1",
        "svgd": "not all modes, could get stuck in the middle",
        "asvgd": "not all modes, could get stuck in the middle",
        "psvgd": "not all modes, could get stuck in the middle",
    },
}

# Table 2: bits per dimension of MsIGN and of Glow.
BITS = {
    "mnist": (0.93, 1.05),
    "cifar10": (3.28, 3.35),
    "celeba64": (2.15, 2.20),
    "imagenet32": (4.03, 4.09),
    "imagenet64": (3.73, 3.81),
}

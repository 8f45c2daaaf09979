"""Take the README's pictures of the app anew: python tests/browser/screenshot.py [FOLDER]

FOLDER is app/tour by default.
"""

import sys
from pathlib import Path

from conftest import ROOT, launch, serve
from playwright.sync_api import sync_playwright

FOLDER = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "app" / "tour"
BAG = "run=fashion-damcha&epoch=49&sample=bag.png"
TOUR = {  # name → link, a button to press first, and the height of the picture
    "inspect": ("?run=objects-damcha&epoch=49&position=5", "", 900),
    "epochs": (f"epochs?{BAG}&epochs_form=surface", "", 760),
    "ablate": (f"ablate?{BAG}", "", 560),
    "contributions": (f"contributions?{BAG}&contributions_beside=fashion-unshared", "", 720),
    "compare": (f"compare?{BAG}&compare_sample=sandal.png", "", 620),
    "atlas": ("atlas?run=fashion-damcha&atlas_n=500", "Survey 500", 960),
}

FOLDER.mkdir(exist_ok=True)
with serve(ROOT / "app" / "main.py") as address, sync_playwright() as playwright:
    chromium = launch(playwright)
    for name, (link, button, height) in TOUR.items():
        page = chromium.new_page(viewport={"width": 1400, "height": height})
        page.goto(f"{address}/{link}")
        if button:
            page.get_by_role("button", name=button).click()
        page.get_by_role("button", name="Export").first.wait_for(timeout=120_000)
        page.wait_for_timeout(3000)  # images, fonts, plotly
        page.screenshot(path=FOLDER / f"{name}.png")
        print(FOLDER / f"{name}.png", flush=True)
        page.close()
    chromium.close()

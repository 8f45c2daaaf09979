"""Take the README's picture of the app anew: python tests/browser/screenshot.py [QUERY [FILE]]

QUERY is a link's state, e.g. "?run=text-damcha"; FILE is app/screenshot.png by default.
"""

import sys
from pathlib import Path

from conftest import DRAWN, ROOT, launch, serve
from playwright.sync_api import sync_playwright

QUERY = sys.argv[1] if len(sys.argv) > 1 else "?run=objects-damcha&epoch=49&position=5"
FILE = Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT / "app" / "screenshot.png"

with serve(ROOT / "app" / "main.py") as address, sync_playwright() as playwright:
    chromium = launch(playwright)
    page = chromium.new_page(viewport={"width": 1400, "height": 900})
    page.goto(address + "/" + QUERY)
    page.wait_for_function(DRAWN, arg="metric", timeout=120_000)
    page.wait_for_timeout(2000)  # images and fonts
    page.screenshot(path=FILE)
    chromium.close()
print(FILE)

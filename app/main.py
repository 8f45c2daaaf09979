"""The server: `streamlit run app/main.py`. It imports torch while the browser still loads."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from streamlit.starlette import App

from app import warm


@asynccontextmanager
async def _lifespan(server: App) -> AsyncIterator[None]:
    warm.begin()
    yield


app = App("dashboard.py", lifespan=_lifespan)

"""The server: `streamlit run app/main.py`. It imports torch while the browser still loads."""

from streamlit.starlette import App

from app import warm

warm.begin()
app = App("dashboard.py")

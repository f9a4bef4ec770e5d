"""Where pixels come from: photos, folders, videos, arrays and cameras, and looks."""

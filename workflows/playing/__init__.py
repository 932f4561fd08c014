"""How is one episode played and recorded? Teams and engines come in; nothing here knows a task's meaning."""

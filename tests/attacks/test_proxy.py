"""The proxy that the documentation shows is one that nginx takes."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")


@pytest.mark.skipif(NGINX is None, reason="needs nginx (apt-get install nginx-light)")
def test_nginx_takes_the_configuration_that_is_shown(tmp_path: Path) -> None:
    assert NGINX is not None
    [shown] = re.findall(r"```nginx\n(.*?)```", (DOCS / "production.md").read_text(), re.DOTALL)
    # Certificates are the only thing in it that has to be there.
    tried = re.sub(r"listen 443 ssl;|ssl_certificate.*", "", shown).replace("server {", "server { listen 127.0.0.1:1;")
    file = tmp_path / "nginx.conf"
    file.write_text(
        f"pid {tmp_path}/pid; error_log stderr; events {{}}\n"
        f"http {{ access_log off; client_body_temp_path {tmp_path}/body; proxy_temp_path {tmp_path}/proxy;\n{tried} }}"
    )
    run = subprocess.run([NGINX, "-t", "-p", str(tmp_path), "-c", str(file)], capture_output=True, text=True)
    assert "syntax is ok" in run.stderr, run.stderr

import socket
import socketserver
import threading
from urllib.parse import urlsplit

from benchmarks import install


class Answer(socketserver.BaseRequestHandler):
    """Takes five bytes and sends 300,000."""

    def handle(self):
        assert self.request.recv(5, socket.MSG_WAITALL) == b"hello"
        self.request.sendall(bytes(300_000))


def _ask(proxy, port):
    place = urlsplit(proxy.url)
    with socket.create_connection((place.hostname, place.port), timeout=20) as client, client.makefile("rb") as answer:
        client.sendall(f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert answer.readline() == b"HTTP/1.1 200 Connection Established\r\n" and answer.readline() == b"\r\n"
        client.sendall(b"hello")
        client.shutdown(socket.SHUT_WR)
        return len(answer.read())


def test_the_proxy_counts_what_comes_back():
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Answer) as server, install.CountingProxy() as proxy:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert [_ask(proxy, server.server_address[1]) for _ in range(2)] == [300_000, 300_000]
        assert proxy.received == 600_000
        proxy.shutdown()
        server.shutdown()


def test_disk_usage_counts_no_links(tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "a").write_bytes(bytes(70))
    (tmp_path / "b").write_bytes(bytes(7))
    (tmp_path / "lib64").symlink_to("lib")
    (tmp_path / "c").symlink_to("b")
    assert install.disk_usage(tmp_path) == 77


def test_ratios_are_to_the_last_lock_file_round_by_round(tmp_path):
    large, small = tmp_path / "large.lock", tmp_path / "small.lock"
    large.write_text("# made by\na==1\nb==2\n")
    small.write_text("a==1\n")
    rounds = {
        large: [install.Install(8_000_000, 30_000_000, 40), install.Install(8_000_000, 30_000_000, 90)],
        small: [install.Install(2_000_000, 10_000_000, 20), install.Install(2_000_000, 10_000_000, 30)],
    }
    assert install.table(rounds).splitlines()[2:] == [
        f"| {large} | 2 | 8 (4.00x to 4.00x) | 30 (3.00x to 3.00x) | 65 (2.00x to 3.00x) |",
        f"| {small} | 1 | 2 (1.00x to 1.00x) | 10 (1.00x to 1.00x) | 25 (1.00x to 1.00x) |",
    ]

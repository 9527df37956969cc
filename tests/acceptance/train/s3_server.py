"""moto's S3 server behind a door that checks every signature and can fail what passes."""

import datetime
import http.client
import http.server
import threading
import urllib.parse

import boto3
import botocore.auth
import botocore.awsrequest
import botocore.credentials
from moto.server import ThreadedMotoServer

BUCKET = "runs"


class Door(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def serve(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.server.seen.append(f"{self.command} {self.path}")
        wrong = self.wrong_signature()
        answer = (403, wrong) if wrong else self.server.fault(self, body)
        if answer == "drop":
            self.close_connection = True
            self.connection.close()
            return
        if isinstance(answer, bytes):
            body, answer = answer, None
        if answer:
            status, code = answer
            self.reply(status, {}, f"<Error><Code>{code}</Code><Message>said by the test</Message></Error>".encode())
            return
        backend = http.client.HTTPConnection(*self.server.backend, timeout=60)
        backend.request(self.command, self.path, body, {name: value for name, value in self.headers.items() if name.lower() != "host"})
        response = backend.getresponse()
        content = response.read()
        hidden = {"transfer-encoding", "connection", "content-length"} | self.server.hidden_headers
        headers = {name: value for name, value in response.getheaders() if name.lower() not in hidden}
        if self.server.checksum and part_number(self.path):
            headers["x-amz-checksum-crc32c"] = self.headers["x-amz-checksum-crc32c"] if self.server.checksum == "same" else self.server.checksum
        self.reply(response.status, headers, content, response.getheader("content-length") if self.command == "HEAD" else None)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = serve

    def reply(self, status, headers, content, length=None):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", length or len(content))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def wrong_signature(self):
        """What botocore would sign with the same secret, against what came."""
        fields = dict(part.strip().split("=", 1) for part in self.headers["authorization"].removeprefix("AWS4-HMAC-SHA256 ").split(","))
        region = fields["Credential"].split("/")[2]
        token = self.headers.get("x-amz-security-token")
        if token != self.server.token:
            return "ExpiredToken"
        signer = botocore.auth.S3SigV4Auth(botocore.credentials.Credentials("key", "secret"), "s3", region)
        request = botocore.awsrequest.AWSRequest(self.command, f"http://{self.headers['host']}{self.path}",
                                                 headers={name: self.headers[name] for name in fields["SignedHeaders"].split(";")})
        request.context["timestamp"] = self.headers["x-amz-date"]
        age = datetime.datetime.now(datetime.timezone.utc) - datetime.datetime.strptime(self.headers["x-amz-date"] + "+0000", "%Y%m%dT%H%M%SZ%z")
        want = signer.signature(signer.string_to_sign(request, signer.canonical_request(request)), request)
        return None if want == fields["Signature"] and abs(age.total_seconds()) < 300 else "SignatureDoesNotMatch"


class S3Server:
    def __init__(self):
        self.moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self.moto.start()
        host, port = self.moto.get_host_and_port()
        self.client = boto3.client("s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1", aws_access_key_id="key",
                                   aws_secret_access_key="secret")
        self.client.create_bucket(Bucket=BUCKET)
        self.door = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Door)
        self.door.backend = (host, port)
        self.reset()
        threading.Thread(target=self.door.serve_forever, daemon=True).start()
        self.endpoint = f"http://127.0.0.1:{self.door.server_port}"

    def reset(self):
        self.door.fault = lambda request, body: None
        self.door.token = None
        self.door.seen = []
        self.door.hidden_headers = set()
        self.door.checksum = None

    def objects(self, prefix):
        listed = self.client.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", [])
        return {item["Key"].removeprefix(prefix): self.client.get_object(Bucket=BUCKET, Key=item["Key"])["Body"].read() for item in listed}

    def uploads(self):
        return self.client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])

    def stop(self):
        self.door.shutdown()
        self.door.server_close()
        self.moto.stop()


def part_number(path):
    """Of an upload of a part; None for other requests."""
    return urllib.parse.parse_qs(urllib.parse.urlsplit(path).query).get("partNumber", [None])[0]

#include "dashboard/server/dashboard_server.h"

#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/websocket.hpp>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "runtime/base/status.h"
#include "tests/support/catch.h"
#include "tests/unit/dashboard/memory_head.h"

namespace argosy::dashboard {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
namespace websocket = beast::websocket;
using asio::ip::tcp;
using nlohmann::json;

constexpr char kTokenText[] = "5ecre7";

struct Fixture {
  explicit Fixture(DashboardLimits limits = {}) {
    auto started = DashboardServer::Start({.port = 0, .token = Token(kTokenText), .limits = limits}, head.Channel());
    REQUIRE(started.ok());
    server = *std::move(started);
  }

  tcp::socket Connect() {
    tcp::socket socket(loop);
    socket.connect({asio::ip::address_v4::loopback(), server->port()});
    return socket;
  }

  http::request<http::string_body> Request(const std::string& method, const std::string& target, std::string body = "") {
    http::request<http::string_body> request{http::string_to_verb(method), target, 11};
    request.set(http::field::host, "127.0.0.1:" + std::to_string(server->port()));
    request.set(http::field::authorization, std::string("Bearer ") + kTokenText);
    request.body() = std::move(body);
    request.prepare_payload();
    return request;
  }

  http::response<http::string_body> Send(const http::request<http::string_body>& request) {
    tcp::socket socket = Connect();
    return Send(socket, request);
  }
  http::response<http::string_body> Send(tcp::socket& socket, const http::request<http::string_body>& request) {
    http::write(socket, request);
    beast::flat_buffer buffer;
    http::response_parser<http::string_body> parser;
    parser.body_limit(boost::none);
    if (request.method() == http::verb::head) parser.skip(true);
    http::read(socket, buffer, parser);
    return parser.release();
  }
  http::response<http::string_body> Send(const std::string& method, const std::string& target, std::string body = "") {
    return Send(Request(method, target, std::move(body)));
  }

  // Throws beast::system_error when the server answers by plain HTTP.
  websocket::stream<tcp::socket> Follow(const std::string& target, int receive_buffer = 0) {
    tcp::socket socket(loop);
    socket.open(tcp::v4());
    if (receive_buffer > 0) socket.set_option(asio::socket_base::receive_buffer_size(receive_buffer));
    socket.connect({asio::ip::address_v4::loopback(), server->port()});
    websocket::stream<tcp::socket> stream(std::move(socket));
    stream.set_option(websocket::stream_base::decorator([](websocket::request_type& request) {
      request.set(http::field::authorization, std::string("Bearer ") + kTokenText);
    }));
    stream.read_message_max(4 << 20);
    stream.handshake("127.0.0.1", target);
    return stream;
  }

  MemoryHead head;
  asio::io_context loop;
  std::unique_ptr<DashboardServer> server;
};

struct Followed {
  std::string text;
  beast::error_code ended;
  size_t frame_max = 0;
  bool all_text = true;
  uint16_t close_code = 0;
};

Followed ReadAll(websocket::stream<tcp::socket>& stream) {
  Followed followed;
  for (;;) {
    beast::flat_buffer buffer;
    stream.read(buffer, followed.ended);
    if (followed.ended) break;
    followed.text += beast::buffers_to_string(buffer.data());
    followed.frame_max = std::max(followed.frame_max, buffer.size());
    followed.all_text = followed.all_text && stream.got_text();
  }
  followed.close_code = stream.reason().code;
  return followed;
}

TEST_CASE("DashboardServer: without a token it listens on loopback only") {
  MemoryHead head;
  for (const char* host : {"0.0.0.0", "::"}) {
    auto refused = DashboardServer::Start({.host = host, .port = 0}, head.Channel());
    INFO(host);
    REQUIRE_FALSE(refused.ok());
    CHECK(Message(refused.status()).find("without a cluster token") != std::string::npos);
  }
  CHECK(DashboardServer::Start({.host = "127.0.0.1", .port = 0}, head.Channel()).ok());
}

TEST_CASE("DashboardServer: answers with the statuses and texts that clients know") {
  Fixture f;
  auto version = json::parse(f.Send("GET", "/api/version").body());
  CHECK(version["version"] == "4");
  CHECK(version["ray_version"] == "2.60.0");
  CHECK(version["session_name"] == "session_test");
  CHECK(f.Send("GET", "/api/gcs_healthz").body() == "success");

  auto check = [&](const std::string& method, const std::string& target, unsigned status, const std::string& text) {
    auto response = f.Send(method, target);
    INFO(method << " " << target);
    CHECK(response.result_int() == status);
    CHECK(response.body() == text);
    CHECK(response[http::field::content_type] == "text/plain; charset=utf-8");
  };
  check("GET", "/api/jobs", 404, "404: Not Found");
  check("PUT", "/api/jobs/", 405, "405: Method Not Allowed");
  for (const char* act : {"", "/logs", "/logs/tail"}) check("GET", std::string("/api/jobs/nope") + act, 404, "Job nope does not exist");
  check("POST", "/api/jobs/nope/stop", 404, "Job nope does not exist");
  check("DELETE", "/api/jobs/nope", 404, "Job nope does not exist");
  check("GET", "/api/packages/gcs/_ray_pkg_00.zip", 404, "Package gcs://_ray_pkg_00.zip does not exist");
}

TEST_CASE("DashboardServer: a job is submitted once, listed, stopped and deleted") {
  Fixture f;
  auto submitted = f.Send("POST", "/api/jobs/", R"({"entrypoint": "echo hi", "submission_id": "job_1"})");
  REQUIRE(submitted.result_int() == 200);
  CHECK(json::parse(submitted.body()) == json({{"job_id", "job_1"}, {"submission_id", "job_1"}}));
  auto again = f.Send("POST", "/api/jobs/", R"({"entrypoint": "echo hi", "submission_id": "job_1"})");
  CHECK(again.result_int() == 500);
  CHECK(again.body() == "Job with submission_id job_1 already exists. Please use a different submission_id.");
  CHECK(f.Send("POST", "/api/jobs/", "{bad").result_int() == 400);

  CHECK(json::parse(f.Send("GET", "/api/jobs/job_1").body())["status"] == "PENDING");
  CHECK(json::parse(f.Send("GET", "/api/jobs/").body()).size() == 1);
  f.head.Finish("job_1", v1::JobInfo::RUNNING);
  auto running = f.Send("DELETE", "/api/jobs/job_1");
  CHECK(running.result_int() == 500);
  CHECK(running.body() == "Attempted to delete job 'job_1', but it is in a non-terminal state RUNNING.");
  CHECK(json::parse(f.Send("POST", "/api/jobs/job_1/stop").body())["stopped"] == true);
  CHECK(json::parse(f.Send("POST", "/api/jobs/job_1/stop").body())["stopped"] == false);
  CHECK(json::parse(f.Send("DELETE", "/api/jobs/job_1").body())["deleted"] == true);
  CHECK(f.Send("GET", "/api/jobs/job_1").result_int() == 404);
}

TEST_CASE("DashboardServer: a finished log is read whole, a longer one from its end with a word about it") {
  Fixture f;
  f.head.AddJob("small");
  f.head.Append("small", "hi\n\xFF\n");
  CHECK(json::parse(f.Send("GET", "/api/jobs/small/logs").body())["logs"] == "hi\n\xEF\xBF\xBD\n");
  f.head.AddJob("big");
  std::string line(1023, 'x');
  for (int i = 0; i < 17 << 10; ++i) f.head.Append("big", line + "\n");
  std::string log = json::parse(f.Send("GET", "/api/jobs/big/logs").body())["logs"];
  CHECK(log.rfind("[LOG TRUNCATED", 0) == 0);
  CHECK(log.size() - log.find('\n') - 1 == 16 << 20);
}

TEST_CASE("DashboardServer: packages go to the head as they come, and too large ones are refused with a reason that arrives") {
  DashboardLimits limits;
  limits.package_bytes_max = 3 << 20;
  Fixture f(limits);
  std::string bytes;
  for (int i = 0; bytes.size() < (2 << 20); ++i) bytes += std::to_string(i);
  auto stored = f.Send("PUT", "/api/packages/gcs/_ray_pkg_01.zip", bytes);
  CHECK(stored.result_int() == 200);
  CHECK(stored.body().empty());
  CHECK(f.head.Package("_ray_pkg_01.zip") == bytes);
  CHECK(f.Send("GET", "/api/packages/gcs/_ray_pkg_01.zip").result_int() == 200);
  CHECK(f.Send("PUT", "/api/packages/gcs/_ray_pkg_02.zip", "").result_int() == 200);

  auto large = f.Send("PUT", "/api/packages/gcs/_ray_pkg_03.zip", std::string(4 << 20, 'x'));
  CHECK(large.result_int() == 413);
  CHECK(large.body() == "Maximum request body size 3145728 exceeded.");
  CHECK(f.Send("PUT", "/api/packages/s3/x.zip", "x").result_int() == 400);
  CHECK(f.Send("POST", "/api/jobs/", std::string(5 << 20, ' ')).result_int() == 413);

  f.head.RefusePackages("no space left on the head's disk");
  auto refused = f.Send("PUT", "/api/packages/gcs/_ray_pkg_04.zip", bytes);
  CHECK(refused.result_int() == 500);
  CHECK(refused.body() == "no space left on the head's disk");
}

TEST_CASE("DashboardServer: a chunked upload without a length is bounded too") {
  DashboardLimits limits;
  limits.package_bytes_max = 1 << 20;
  Fixture f(limits);
  auto request = f.Request("PUT", "/api/packages/gcs/_ray_pkg_01.zip");
  request.body() = std::string(500'000, 'y');
  request.erase(http::field::content_length);
  request.chunked(true);
  CHECK(f.Send(request).result_int() == 200);
  CHECK(f.head.Package("_ray_pkg_01.zip") == request.body());
}

TEST_CASE("DashboardServer: one connection serves request after request") {
  Fixture f;
  tcp::socket socket = f.Connect();
  for (int i = 0; i < 3; ++i) CHECK(f.Send(socket, f.Request("GET", "/api/version")).result_int() == 200);
  auto wrong = f.Request("POST", "/api/jobs/", "{}");
  wrong.set(http::field::authorization, "Bearer no");
  CHECK(f.Send(socket, wrong).result_int() == 403);
  CHECK(f.Send(socket, f.Request("HEAD", "/api/version")).body().empty());
  CHECK(f.Send(socket, f.Request("GET", "/api/version")).result_int() == 200);
}

TEST_CASE("DashboardServer: broken and oversized requests get an answer, not a crash") {
  Fixture f;
  tcp::socket socket = f.Connect();
  asio::write(socket, asio::buffer(std::string("NOT HTTP AT ALL\r\n\r\n")));
  beast::flat_buffer buffer;
  http::response<http::string_body> response;
  http::read(socket, buffer, response);
  CHECK(response.result_int() == 400);

  auto large = f.Request("GET", "/api/version");
  large.set("X-Large", std::string(40 << 10, 'x'));
  CHECK(f.Send(large).result_int() == 431);
  CHECK(f.Send("GET", "/api/gcs_healthz").result_int() == 200);
}

TEST_CASE("DashboardServer: more connections than the limit are turned away, and the rest go on") {
  DashboardLimits limits;
  limits.connections_max = 2;
  Fixture f(limits);
  tcp::socket one = f.Connect(), two = f.Connect();
  CHECK(f.Send(one, f.Request("GET", "/api/version")).result_int() == 200);
  CHECK(f.Send(two, f.Request("GET", "/api/version")).result_int() == 200);
  tcp::socket three = f.Connect();
  beast::flat_buffer buffer;
  http::response<http::string_body> busy;
  http::read(three, buffer, busy);
  CHECK(busy.result_int() == 503);
  CHECK(f.Send(one, f.Request("GET", "/api/version")).result_int() == 200);
}

TEST_CASE("DashboardServer: whoever has no token cannot keep out those who have one") {
  DashboardLimits limits;
  limits.connections_max = 3;
  Fixture f(limits);
  tcp::socket mine = f.Connect();
  CHECK(f.Send(mine, f.Request("GET", "/api/version")).result_int() == 200);
  std::vector<tcp::socket> strangers;
  for (int i = 0; i < 10; ++i) {
    strangers.push_back(f.Connect());
    if (i % 2 == 0) continue;   // half of them say nothing at all
    http::request<http::string_body> health = f.Request("GET", "/api/gcs_healthz");
    health.erase(http::field::authorization);
    CHECK(f.Send(strangers.back(), health).result_int() == 200);
  }
  CHECK(f.Send("GET", "/api/version").result_int() == 200);
  CHECK(f.Send(mine, f.Request("GET", "/api/version")).result_int() == 200);
  // The oldest strangers were let go.
  char byte;
  beast::error_code error;
  strangers.front().read_some(asio::buffer(&byte, 1), error);
  CHECK(error == asio::error::eof);
}

TEST_CASE("DashboardServer: logging in sets a cookie that scripts cannot read") {
  Fixture f;
  auto request = f.Request("POST", "/api/argosy/login", R"({"token": "5ecre7"})");
  request.erase(http::field::authorization);
  request.set(http::field::user_agent, "Mozilla/5.0");
  CHECK(f.Send(request).result_int() == 405);
  request.set(http::field::origin, "http://127.0.0.1:" + std::to_string(f.server->port()));
  auto response = f.Send(request);
  REQUIRE(response.result_int() == 200);
  std::string cookie(response[http::field::set_cookie]);
  CHECK(cookie.find("ray-authentication-token=5ecre7; Path=/; HttpOnly; SameSite=Strict") == 0);
  request.body() = R"({"token": "wrong"})";
  request.prepare_payload();
  CHECK(f.Send(request).result_int() == 403);

  auto cluster = f.Request("GET", "/api/argosy/cluster");
  cluster.erase(http::field::authorization);
  CHECK(f.Send(cluster).result_int() == 401);
  cluster.set(http::field::cookie, "ray-authentication-token=5ecre7");
  auto answer = json::parse(f.Send(cluster).body());
  CHECK(answer["nodes"][0]["name"] == "n1");
  CHECK(answer["nodes"][0]["resources_total"]["CPU"] == 2);
  CHECK(answer["pending"][0]["explanation"] == "no node has GPU: 8");
}

TEST_CASE("DashboardServer: without a built page it says how to build one, under a policy that loads nothing from elsewhere") {
  Fixture f;
  auto request = f.Request("GET", "/");
  request.erase(http::field::authorization);
  auto page = f.Send(request);
  CHECK(page.result_int() == 200);
  CHECK(page.body().find("npm run build") != std::string::npos);
  CHECK(std::string(page["Content-Security-Policy"]).find("default-src 'none'") == 0);
  CHECK(f.Send("GET", "/assets/../../etc/passwd").result_int() == 404);
}

TEST_CASE("Log tail: every byte of a job that runs arrives, then the close frame 1000") {
  Fixture f;
  f.head.AddJob("j", v1::JobInfo::PENDING);
  auto stream = f.Follow("/api/jobs/j/logs/tail");
  std::thread job([&] {
    f.head.Finish("j", v1::JobInfo::RUNNING);
    for (char c : std::string("h\xC3\xA4llo\n")) f.head.Append("j", std::string(1, c));
    f.head.Append("j", std::string(300'000, 'x') + "\n");
    f.head.Finish("j");
  });
  Followed followed = ReadAll(stream);
  job.join();
  CHECK(followed.text == "h\xC3\xA4llo\n" + std::string(300'000, 'x') + "\n");
  CHECK(followed.all_text);
  CHECK(followed.frame_max <= 64 << 10);
  CHECK(followed.ended == websocket::error::closed);
  CHECK(followed.close_code == 1000);
}

TEST_CASE("Log tail: a follow that resumes by offset loses and repeats nothing") {
  Fixture f;
  f.head.AddJob("j");
  std::string log;
  for (int i = 0; i < 40'000; ++i) log += "line " + std::to_string(i) + "\n";
  f.head.Append("j", log);
  f.head.Finish("j");
  std::string got;
  for (int cut = 0; got.size() < log.size(); ++cut) {
    auto stream = f.Follow("/api/jobs/j/logs/tail?format=bytes&offset=" + std::to_string(got.size()));
    for (int frames = 0; frames < 2; ++frames) {   // then the connection breaks
      beast::flat_buffer buffer;
      beast::error_code error;
      stream.read(buffer, error);
      if (error) break;
      CHECK(stream.got_binary());
      std::string frame = beast::buffers_to_string(buffer.data());
      uint64_t offset = 0;
      for (int i = 0; i < 8; ++i) offset = offset << 8 | static_cast<unsigned char>(frame[i]);
      REQUIRE(offset == got.size());
      got += frame.substr(8);
    }
    REQUIRE(cut < 100);
  }
  CHECK(got == log);
}

TEST_CASE("Log tail: bytes that are gone are said to be gone") {
  Fixture f;
  f.head.AddJob("j");
  f.head.Append("j", "0123456789");
  f.head.Forget("j", 4);
  f.head.Finish("j");
  auto stream = f.Follow("/api/jobs/j/logs/tail");
  CHECK(ReadAll(stream).text == "[4 bytes of this log are gone: it grew past its limit]\n456789");
}

TEST_CASE("Log tail: when the head fails the connection is reset, never closed as if the job had ended") {
  Fixture f;
  f.head.AddJob("j");
  f.head.Append("j", "so far\n");
  auto stream = f.Follow("/api/jobs/j/logs/tail");
  beast::flat_buffer buffer;
  stream.read(buffer);
  f.head.Break("j");
  Followed followed = ReadAll(stream);
  CHECK(followed.ended != websocket::error::closed);
  CHECK(followed.close_code == 0);
}

TEST_CASE("Log tail: stopping the server resets its followers and ends") {
  Fixture f;
  f.head.AddJob("j");
  f.head.Append("j", "x");
  auto stream = f.Follow("/api/jobs/j/logs/tail");
  beast::flat_buffer buffer;
  stream.read(buffer);
  f.server->Stop();
  Followed followed = ReadAll(stream);
  CHECK(followed.ended != websocket::error::closed);
}

TEST_CASE("Log tail: pings are answered and sent while the log is silent") {
  DashboardLimits limits;
  limits.ping_period = std::chrono::seconds(1);
  Fixture f(limits);
  f.head.AddJob("j");
  auto stream = f.Follow("/api/jobs/j/logs/tail");
  int pings = 0, pongs = 0;
  stream.control_callback([&](websocket::frame_type type, beast::string_view) {
    pings += type == websocket::frame_type::ping;
    pongs += type == websocket::frame_type::pong;
    if (pings > 0 && pongs > 0) f.head.Finish("j");
  });
  stream.ping({});
  Followed followed = ReadAll(stream);
  CHECK(pings > 0);
  CHECK(pongs > 0);
  CHECK(followed.close_code == 1000);
}

TEST_CASE("Log tail: a follower that does not read holds the head back instead of filling memory") {
  Fixture f;
  f.head.AddJob("j");
  std::string block(1 << 20, 'x');
  for (int i = 0; i < 64; ++i) f.head.Append("j", block);
  f.head.Finish("j");
  auto stream = f.Follow("/api/jobs/j/logs/tail", /*receive_buffer=*/64 << 10);
  // Wait until nothing moves any more, then look at how much the head has given out.
  auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  uint64_t before = 0;
  int still = 0;
  while (still < 5 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    uint64_t now = f.head.Sent("j");
    still = now > 0 && now == before ? still + 1 : 0;
    before = now;
  }
  REQUIRE(still == 5);
  CHECK(before < 16 << 20);
  Followed followed = ReadAll(stream);
  CHECK(followed.text.size() == 64 << 20);
  CHECK(followed.close_code == 1000);
}

TEST_CASE("Log tail: a wrong offset, an unknown job and a missing token are plain HTTP answers") {
  Fixture f;
  f.head.AddJob("j");
  auto upgrade = f.Request("GET", "/api/jobs/j/logs/tail?offset=-1");
  upgrade.set(http::field::connection, "Upgrade");
  upgrade.set(http::field::upgrade, "websocket");
  upgrade.set(http::field::sec_websocket_version, "13");
  upgrade.set(http::field::sec_websocket_key, "dGhlIHNhbXBsZSBub25jZQ==");
  CHECK(f.Send(upgrade).result_int() == 400);
  upgrade.target("/api/jobs/nope/logs/tail");
  CHECK(f.Send(upgrade).result_int() == 404);
  upgrade.erase(http::field::authorization);
  CHECK(f.Send(upgrade).result_int() == 401);
  CHECK(f.Send("GET", "/api/jobs/j/logs/tail").result_int() == 426);
}

}  // namespace
}  // namespace argosy::dashboard

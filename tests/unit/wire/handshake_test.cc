#include "runtime/wire/handshake.h"

#include "tests/support/catch.h"

namespace argosy::wire {
namespace {

HandshakeMachine::Options Side(bool is_client, const std::string& token) {
  HandshakeMachine::Options options;
  options.is_client = is_client;
  options.self = {is_client ? Role::kWorker : Role::kNode, std::string(WorkerId::FromNumber(is_client ? 1 : 2).Bytes())};
  options.token = Token(token);
  options.nonce = std::string(16, is_client ? 'c' : 's');
  return options;
}

struct Outcome { absl::Status client, server; bool client_done, server_done; };

// Carries bodies between two machines until neither has more to say.
Outcome Exchange(HandshakeMachine& client, HandshakeMachine& server) {
  Outcome outcome{};
  std::vector<std::string> to_server = client.Start(), to_client;
  while (!to_server.empty() || !to_client.empty()) {
    for (const std::string& body : std::exchange(to_server, {})) {
      absl::StatusOr<std::vector<std::string>> answer = server.OnBody(body);
      if (answer.ok()) to_client = *answer;
      else { outcome.server = answer.status(); if (!server.farewell().empty()) to_client = {server.farewell()}; }
    }
    for (const std::string& body : std::exchange(to_client, {})) {
      absl::StatusOr<std::vector<std::string>> answer = client.OnBody(body);
      if (answer.ok()) to_server = *answer;
      else { outcome.client = answer.status(); if (!client.farewell().empty() && outcome.server.ok()) to_server = {client.farewell()}; }
    }
  }
  outcome.client_done = client.done();
  outcome.server_done = server.done();
  return outcome;
}

}  // namespace

TEST_CASE("HandshakeMachine: equal tokens prove each other and name the peers") {
  HandshakeMachine client(Side(true, "secret")), server(Side(false, "secret"));
  Outcome outcome = Exchange(client, server);
  CHECK(outcome.client_done);
  CHECK(outcome.server_done);
  CHECK(client.peer().id == WorkerId::FromNumber(2).Bytes());
  CHECK(server.peer().role == Role::kWorker);
}

TEST_CASE("HandshakeMachine: a wrong token is refused on both sides") {
  HandshakeMachine client(Side(true, "wrong")), server(Side(false, "secret"));
  Outcome outcome = Exchange(client, server);
  CHECK_FALSE(outcome.client_done);
  CHECK_FALSE(outcome.server_done);
  CHECK(outcome.client.code() == absl::StatusCode::kPermissionDenied);
  CHECK(outcome.server.code() == absl::StatusCode::kPermissionDenied);
}

TEST_CASE("HandshakeMachine: a client that does not check its server is still refused for its proof") {
  // The server must not trust a proof made with another token, whatever the client thought of the server's.
  HandshakeMachine server(Side(false, "secret"));
  Hello hello;
  hello.major = kProtocolMajor;
  hello.id = std::string(16, 'x');
  hello.nonce = std::string(16, 'n');
  REQUIRE(server.OnBody(Encode(HandshakeBody(hello))).ok());
  CHECK(server.OnBody(Encode(HandshakeBody(Proof{std::string(32, 'p')}))).status().code() == absl::StatusCode::kPermissionDenied);
  CHECK_FALSE(server.done());
}

TEST_CASE("HandshakeMachine: a refusal is an error whatever its code says") {
  for (int32_t code : {0, 7, -1, 1'000'000}) {
    HandshakeMachine server(Side(false, "secret"));
    absl::Status status = server.OnBody(Encode(HandshakeBody(Rejected{code, "no"}))).status();
    CHECK_FALSE(status.ok());
    CHECK(Message(status).find("refused by the peer: no") != std::string::npos);
    CHECK_FALSE(server.done());
  }
}

TEST_CASE("HandshakeMachine: another protocol version is refused with both versions named") {
  HandshakeMachine::Options newer = Side(true, "secret");
  newer.major = 9;
  HandshakeMachine client(newer), server(Side(false, "secret"));
  Outcome outcome = Exchange(client, server);
  CHECK(outcome.server.code() == absl::StatusCode::kFailedPrecondition);
  CHECK(Message(outcome.client).find("1.0 here, 9.0 at the peer") != std::string::npos);
}

TEST_CASE("HandshakeMachine: a recorded proof is worth nothing against a fresh nonce") {
  HandshakeMachine client(Side(true, "secret")), server(Side(false, "secret"));
  std::vector<std::string> hello = client.Start();
  std::vector<std::string> answer = *server.OnBody(hello[0]);
  std::vector<std::string> proof = *client.OnBody(answer[0]);
  HandshakeMachine::Options fresh = Side(false, "secret");
  fresh.nonce = std::string(16, 'f');
  HandshakeMachine other(fresh);
  REQUIRE(other.OnBody(hello[0]).ok());
  CHECK_FALSE(other.OnBody(proof[0]).ok());
}

TEST_CASE("HandshakeMachine: messages out of order and garbage end it") {
  HandshakeMachine server(Side(false, "secret"));
  CHECK_FALSE(server.OnBody(Encode(HandshakeBody(Accepted{}))).ok());
  CHECK_FALSE(server.OnBody("GET / HTTP/1.1").ok());
}

}  // namespace argosy::wire

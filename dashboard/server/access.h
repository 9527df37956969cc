#pragma once

// Who may do what: the cluster token, and the guard against pages of other origins.

#include <optional>
#include <string>
#include <string_view>

#include "dashboard/server/request.h"
#include "dashboard/server/routes.h"
#include "runtime/base/token.h"

namespace argosy::dashboard {

inline constexpr char kTokenCookie[] = "ray-authentication-token";

// The credential a request carries, looked for in this order: Authorization, X-Ray-Authorization, the cookie. Empty: none.
std::string Credential(const RequestHead& head);

// True for http(s)://HOST where HOST is the request's own Host header.
bool IsSameOrigin(const RequestHead& head);

// Health, log-in and the page's files.
bool IsOpenToAll(Endpoint endpoint);

// The refusal, or none when the request may go on.
//
// 401 and 403 carry the texts that the field's clients recognise; health, log-in and the page's files need no token. A
// request that changes something and comes from a browser must come from our own page (405 as the peer answers), so that
// another site cannot use the reader's cookie; the same goes for WebSockets (403).
std::optional<Response> Refusal(const RequestHead& head, Endpoint endpoint, const Token& token);

}  // namespace argosy::dashboard

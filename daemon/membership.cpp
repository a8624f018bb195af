#include "daemon/membership.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace weft::daemon {
namespace {

using nlohmann::json;

constexpr unsigned kPrivate = 0600;

// The key of a previous attempt, or a new one: the broker lets the same key retry a token.
Result<net::KeyPair> key_in(const os::Path& dir) {
  if (auto pem = os::read_file(dir / "peer.key", 65536); pem.ok()) {
    return net::KeyPair{*pem, {}};
  }
  WEFT_TRY(net::KeyPair key, net::make_key());
  WEFT_TRY_STATUS(os::write_file_atomic(dir / "peer.key", key.private_pem, kPrivate));
  return key;
}

Result<net::CurveKeys> curve_in(const os::Path& dir) {
  if (auto secret = os::read_file(dir / "curve.key", 4096); secret.ok()) {
    WEFT_TRY(std::string open, net::curve_public(*secret));
    return net::CurveKeys{open, *secret};
  }
  net::CurveKeys keys = net::make_curve_keys();
  WEFT_TRY_STATUS(os::write_file_atomic(dir / "curve.key", keys.secret_z85, kPrivate));
  return keys;
}

Result<json> parse_object(const std::string& text, const char* what) {
  json parsed = json::parse(text, nullptr, false);
  if (!parsed.is_object()) {
    return make_error(Code::kCorrupt, fmt::format("{} is not a JSON object", what));
  }
  return parsed;
}

Status fill_from_json(Membership& member, const json& fields) {
  try {
    member.peer = fields.at("peer").get<std::string>();
    member.broker_host = fields.at("broker_host").get<std::string>();
    member.broker_port = fields.at("broker_port").get<uint16_t>();
    member.control_host = fields.at("control_host").get<std::string>();
    member.control_port = fields.at("control_port").get<uint16_t>();
    member.control_key_z85 = fields.at("control_key").get<std::string>();
  } catch (const json::exception& error) {
    return make_error(Code::kCorrupt, fmt::format("membership is incomplete: {}", error.what()));
  }
  return {};
}

Status save(const os::Path& dir, const Membership& member) {
  const json fields = {{"peer", member.peer},
                       {"broker_host", member.broker_host},
                       {"broker_port", member.broker_port},
                       {"control_host", member.control_host},
                       {"control_port", member.control_port},
                       {"control_key", member.control_key_z85}};
  WEFT_TRY_STATUS(os::write_file_atomic(dir / "peer.pem", member.certificate_pem));
  WEFT_TRY_STATUS(os::write_file_atomic(dir / "ca.pem", member.ca_pem));
  // Last: its presence means that the rest is whole.
  return os::write_file_atomic(dir / "membership.json", fields.dump(2) + "\n");
}

Result<json> ask_to_join(const net::JoinAddress& address, const json& body) {
  net::HttpClientOptions options;
  options.host = address.host;
  options.port = address.port;
  options.ca_fingerprint = address.ca_fingerprint;
  net::HttpClient client(options);
  WEFT_TRY(net::HttpResponse response, client.request("POST", "/api/v1/join", body.dump()));
  if (response.status >= 400) {
    return net::error_from_response(response).within("the broker refused to let this peer join");
  }
  return parse_object(response.body, "the broker's answer");
}

}  // namespace

net::HttpClientOptions Membership::broker_client() const {
  net::HttpClientOptions options;
  options.host = broker_host;
  options.port = broker_port;
  options.ca_pem = ca_pem;
  options.expect_subject = "broker";
  options.certificate_pem = certificate_pem;
  options.key_pem = key_pem;
  return options;
}

Result<Membership> load_membership(const os::Path& dir) {
  auto text = os::read_file(dir / "membership.json", 65536);
  if (!text.ok()) {
    return make_error(Code::kNotFound,
                      fmt::format("this machine has not joined a cluster (no {})",
                                  (dir / "membership.json").string()),
                      "run `weftd join ADDRESS` with an address from `weft peer invite`");
  }
  WEFT_TRY(json fields, parse_object(*text, "membership.json"));
  Membership member;
  WEFT_TRY_STATUS(fill_from_json(member, fields));
  WEFT_TRY(member.certificate_pem, os::read_file(dir / "peer.pem", 65536));
  WEFT_TRY(member.key_pem, os::read_file(dir / "peer.key", 65536));
  WEFT_TRY(member.ca_pem, os::read_file(dir / "ca.pem", 65536));
  WEFT_TRY(member.curve.secret_z85, os::read_file(dir / "curve.key", 4096));
  WEFT_TRY(member.curve.public_z85, net::curve_public(member.curve.secret_z85));
  return member;
}

Result<Membership> join_cluster(const os::Path& dir, const std::string& text,
                                const std::string& name) {
  WEFT_TRY(net::JoinAddress address, net::parse_join_address(text));
  WEFT_TRY_STATUS(os::make_directories(dir, 0700));
  WEFT_TRY(net::KeyPair key, key_in(dir));
  Membership member;
  member.key_pem = key.private_pem;
  WEFT_TRY(member.curve, curve_in(dir));
  WEFT_TRY(std::string request, net::make_request_pem(key, "peer"));
  WEFT_TRY(json answer, ask_to_join(address, {{"token", address.token},
                                              {"request_pem", request},
                                              {"curve_public", member.curve.public_z85},
                                              {"name", name}}));
  answer["broker_host"] = address.host;
  answer["broker_port"] = address.port;
  if (answer.value("control_host", std::string()).empty()) answer["control_host"] = address.host;
  WEFT_TRY_STATUS(fill_from_json(member, answer));
  member.certificate_pem = answer.value("certificate_pem", std::string());
  member.ca_pem = answer.value("ca_pem", std::string());
  WEFT_TRY_STATUS(save(dir, member));
  return member;
}

}  // namespace weft::daemon

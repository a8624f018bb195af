// /api/v1/links
#include <fmt/format.h>

#include <set>

#include "broker/api/api.h"

namespace weft::broker {
namespace {

// Of more peers only what was measured itself is listed: all pairs of a thousand are a million.
constexpr size_t kMostInferred = 128;
constexpr const char* kIdle = "idle";

Json known(double mbit_s) {
  return mbit_s > 0 ? Json(mbit_s) : Json(nullptr);
}

const char* known_by(const LinkEstimate& link) {
  return link.carried ? "work" : link.measured ? "probe" : "inference";
}

Json link_json(const LinkEstimate& link) {
  return {{"from", link.from},
          {"to", link.to},
          {"latency_ms", link.latency_ms},
          {"latency_low_ms", link.latency_low_ms},
          {"latency_high_ms", link.latency_high_ms},
          {"bandwidth_mbit_s", known(link.bandwidth_mbit_s)},
          {"measured", link.measured},
          {"known_by", known_by(link)},
          {"path", path_class_name(link.path)},
          {"time_ms", link.measured ? Json(link.time_ms) : Json(nullptr)}};
}

Json view_json(const LinkView& view, bool inferred) {
  Json links = Json::array(), lines = Json::array();
  for (const LinkEstimate& link : view.links) links.push_back(link_json(link));
  for (const PlannerAccess& line : view.access) {
    lines.push_back({{"peers", line.peers},
                     {"up_mbit_s", known(line.up_mbit_s)},
                     {"down_mbit_s", known(line.down_mbit_s)},
                     {"up_assumed", line.up_assumed},
                     {"down_assumed", line.down_assumed}});
  }
  return {{"links", std::move(links)}, {"lines", std::move(lines)}, {"inferred", inferred}};
}

// "a,b,c": ids of peers.
Result<std::vector<std::string>> named_peers(const std::string& text, const State& state) {
  std::set<std::string> ids;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    std::string id = text.substr(begin, end - begin);
    if (!state.peers.contains(id)) {
      return make_error(Code::kNotFound, fmt::format("there is no peer {}", id),
                        "see `weft peer list`");
    }
    ids.insert(std::move(id));
    begin = end + 1;
  }
  return std::vector<std::string>(ids.begin(), ids.end());
}

Result<std::vector<std::string>> asked_peers(const net::HttpRequest& request, const State& state) {
  const auto query = request.query.find("peers");
  if (query != request.query.end() && query->second != kIdle) {
    return named_peers(query->second, state);
  }
  std::vector<std::string> ids;
  for (const auto& [id, peer] : state.peers) {
    const bool wanted =
        query == request.query.end() ? peer.phase != PeerPhase::kGone : usable(peer);
    if (wanted) ids.push_back(id);
  }
  return ids;
}

}  // namespace

void Api::get_links(const Call& call, const net::HttpReply& reply) {
  answer(reply, [&]() -> Result<Json> {
    WEFT_TRY(const auto ids, asked_peers(call.request, core_.state()));
    const bool inferred = ids.size() <= kMostInferred;
    const LinkBook& book = core_.links();
    return view_json(inferred ? book.view(ids) : book.measured(ids), inferred);
  }());
}

Json line_json(const LinkBook& book, const std::string& peer) {
  const auto line = book.line(peer);
  if (!line) return nullptr;
  return {{"up_mbit_s", known(line->up_mbit_s)},
          {"down_mbit_s", known(line->down_mbit_s)},
          {"shared_up_mbit_s", known(line->shared_up_mbit_s)},
          {"shared_down_mbit_s", known(line->shared_down_mbit_s)},
          {"site", line->site}};
}

}  // namespace weft::broker

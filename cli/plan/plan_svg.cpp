#include "cli/plan/plan_svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "cli/app.h"

namespace weft::cli {
namespace {

constexpr int kCell = 170, kRow = 64, kMargin = 24, kTop = 64, kPeersDown = 8;

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&quot;";
    } else {
      out += c;
    }
  }
  return out;
}

struct Place {
  int x = 0, y = 0;
};

// Sites from left to right, their peers down in columns.
class Drawing {
 public:
  explicit Drawing(const broker::PlanReport& report) : report_(report) {
    for (size_t s = 0; s < report.plan.stages.size(); ++s) {
      stage_of_[report.plan.stages[s].replicas.at(0)] = s;
    }
  }

  std::string draw() {
    std::string boxes, peers;
    int left = kMargin, height = 0;
    for (const auto& site : report_.sites) {
      const int columns = (static_cast<int>(site.size()) + kPeersDown - 1) / kPeersDown;
      const int rows = std::min(static_cast<int>(site.size()), kPeersDown);
      boxes += fmt::format(
          "<rect x='{}' y='{}' width='{}' height='{}' rx='10' fill='#f4f4f0' stroke='#bbb'/>\n",
          left, kTop, columns * kCell, rows * kRow + kMargin);
      for (size_t i = 0; i < site.size(); ++i) {
        const int column = static_cast<int>(i) / kPeersDown, row = static_cast<int>(i) % kPeersDown;
        peers += peer(site[i], {left + column * kCell + 12, kTop + row * kRow + 16});
      }
      left += columns * kCell + kMargin;
      height = std::max(height, kTop + rows * kRow + 2 * kMargin);
    }
    const int width = std::max(left, 480);
    return fmt::format(
               "<svg xmlns='http://www.w3.org/2000/svg' width='{0}' height='{1}' "
               "viewBox='0 0 {0} {1}' font-family='sans-serif' font-size='12'>\n"
               "<defs><marker id='head' viewBox='0 0 10 10' refX='9' refY='5' markerWidth='10' "
               "markerHeight='10' markerUnits='userSpaceOnUse' orient='auto'>"
               "<path d='M0 0L10 5L0 10z' fill='#b5541c'/></marker></defs>\n"
               "<rect width='100%' height='100%' fill='white'/>\n"
               "<text x='{2}' y='22' font-size='14'>{3}</text>\n"
               "<text x='{2}' y='42' fill='#555'>bottleneck: {4}</text>\n",
               width, height, kMargin, escaped(title()), escaped(report_.bottleneck)) +
           boxes + peers + ways() + "</svg>\n";
  }

 private:
  std::string title() const {
    std::string text = fmt::format("{} stages on {} peers", report_.plan.stages.size(),
                                   report_.plan.stages.size() + report_.left_out.size());
    if (report_.timed) {
      text += fmt::format(", {:.3g} s a step", report_.prediction.step_s);
    }
    return text;
  }

  std::string peer(const std::string& id, Place at) {
    const auto stage = stage_of_.find(id);
    const bool used = stage != stage_of_.end();
    if (used) places_[stage->second] = {at.x + 72, at.y + 22};
    std::string text = fmt::format(
        "<g><rect x='{}' y='{}' width='146' height='46' rx='6' fill='{}' stroke='#777'/>"
        "<text x='{}' y='{}'>{}</text>",
        at.x, at.y, used ? "#cfe3f5" : "#ffffff", at.x + 8, at.y + 18, escaped(id));
    if (used) {
      const auto& row = report_.prediction.stages[stage->second];
      text += fmt::format("<text x='{}' y='{}' fill='#333'>stage {}, {}, {:.0f} % busy</text>",
                          at.x + 8, at.y + 36, stage->second, human_bytes(row.memory_bytes),
                          100 * row.busy);
    } else {
      text += fmt::format("<text x='{}' y='{}' fill='#999'>spare</text>", at.x + 8, at.y + 36);
    }
    return text + "</g>\n";
  }

  std::string ways() const {
    std::string text;
    for (const auto& way : report_.prediction.ways) {
      const auto from = places_.find(static_cast<size_t>(way.from));
      const auto to = places_.find(static_cast<size_t>(way.to));
      if (from == places_.end() || to == places_.end()) continue;
      const int shift = way.from < way.to ? -6 : 6;  // both directions side by side
      text += fmt::format(
          "<line x1='{}' y1='{}' x2='{}' y2='{}' stroke='#b5541c' stroke-opacity='0.7' "
          "stroke-width='{:.1f}' marker-end='url(#head)'><title>stage {} to {}: {} a "
          "micro-batch, {:.0f} % busy</title></line>\n",
          from->second.x, from->second.y + shift, to->second.x, to->second.y + shift,
          1 + 7 * std::min(way.busy, 1.0), way.from, way.to,
          way.codecs.empty() ? human_bytes(way.bytes)
                             : fmt::format("{} instead of {}", human_bytes(way.wire_bytes),
                                           human_bytes(way.bytes)),
          100 * way.busy);
    }
    return text;
  }

  const broker::PlanReport& report_;
  std::map<std::string, size_t> stage_of_;
  std::map<size_t, Place> places_;
};

}  // namespace

std::string plan_svg(const broker::PlanReport& report) {
  return Drawing(report).draw();
}

}  // namespace weft::cli

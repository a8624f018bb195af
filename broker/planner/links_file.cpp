#include "broker/planner/links_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>

namespace weft::broker {
namespace {

constexpr size_t kMaxBytes = size_t{256} << 20;
constexpr size_t kMaxPeers = 4096;

std::string_view trimmed(std::string_view text) {
  const auto begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

struct Line {
  size_t number = 0;
  std::vector<std::string_view> cells;
};

std::vector<Line> lines_of(std::string_view text) {
  std::vector<Line> lines;
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view rest = trimmed(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (rest.empty() || rest[0] == '#') continue;
    Line line{number, {}};
    while (true) {
      const size_t comma = rest.find(',');
      line.cells.push_back(trimmed(rest.substr(0, comma)));
      if (comma == std::string_view::npos) break;
      rest.remove_prefix(comma + 1);
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

std::optional<double> number_of(std::string_view cell) {
  double value = 0;
  const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
  if (error != std::errc() || end != cell.data() + cell.size() || !std::isfinite(value)) {
    return std::nullopt;
  }
  return value;
}

class LinksReader {
 public:
  LinksReader(const std::string& source, PlannerWorld& world) : source_(source), world_(world) {}

  Status read(std::string_view text) {
    if (text.size() > kMaxBytes) {
      return make_error(Code::kTooLarge, fmt::format("{} has {} bytes, at most {} are read",
                                                     source_, text.size(), kMaxBytes));
    }
    constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";  // spreadsheets write one
    if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
    const std::vector<Line> lines = lines_of(text);
    if (lines.empty()) return make_error(Code::kInvalid, fmt::format("{} is empty", source_));
    const bool numbers = std::all_of(
        lines[0].cells.begin(), lines[0].cells.end(),
        [](std::string_view cell) { return cell.empty() || number_of(cell).has_value(); });
    return numbers ? read_matrix(lines) : read_pairs(lines);
  }

 private:
  Error wrong(const Line& line, const std::string& message, const std::string& next) const {
    return make_error(Code::kInvalid, fmt::format("{}, line {}: {}", source_, line.number, message),
                      next);
  }

  Status read_matrix(const std::vector<Line>& lines) {
    if (lines.size() > kMaxPeers) {
      return make_error(Code::kTooLarge, fmt::format("{} has {} rows, at most {} are read", source_,
                                                     lines.size(), kMaxPeers));
    }
    if (world_.peers.empty()) {
      for (size_t i = 0; i < lines.size(); ++i) add_peer(fmt::format("node-{}", i));
    }
    if (lines.size() != world_.peers.size()) {
      return make_error(Code::kInvalid,
                        fmt::format("{} is a matrix of {} rows for {} peers", source_, lines.size(),
                                    world_.peers.size()),
                        "give one row and one column for each [[peer]], in their order");
    }
    size_t holes = 0;
    for (size_t row = 0; row < lines.size(); ++row) {
      const Line& line = lines[row];
      if (line.cells.size() != lines.size()) {
        return wrong(
            line,
            fmt::format("{} columns, the matrix has {} rows", line.cells.size(), lines.size()),
            "a matrix is square; leave a cell empty where nothing was measured");
      }
      for (size_t column = 0; column < line.cells.size(); ++column) {
        if (row == column) continue;
        if (line.cells[column].empty()) {
          ++holes;
          continue;
        }
        const auto rate = number_of(line.cells[column]);
        if (!rate || *rate <= 0) {
          return wrong(line,
                       fmt::format("column {} is \"{}\", a bandwidth is above 0", column + 1,
                                   line.cells[column]),
                       "leave the cell empty where nothing was measured");
        }
        world_.links.push_back({world_.peers[row].id, world_.peers[column].id, 0, *rate});
      }
    }
    if (holes > 0) world_.notes.push_back(fmt::format("{} has {} empty cells", source_, holes));
    world_.notes.push_back(source_ + " tells no latency: it counts as none");
    return {};
  }

  // Columns by name; two name the ends, in either order of columns.
  Status read_header(const Line& line) {
    for (size_t i = 0; i < line.cells.size(); ++i) {
      const std::string_view cell = line.cells[i];
      if (cell == "from" || cell == "to") directed_ = true;
      if (cell == "from" || cell == "region_a" || cell == "a") from_ = i;
      if (cell == "to" || cell == "region_b" || cell == "b") to_ = i;
      if (cell == "delay_ms" || cell == "latency_ms") latency_ = i;
      if (cell == "bandwidth_gbps" || cell == "bandwidth_mbit_s") rate_ = i;
      if (cell == "bandwidth_gbps") to_mbit_ = 1000;
    }
    if (from_ && to_ && rate_) return {};
    return wrong(line, "this is neither a matrix of numbers nor the header of a list of pairs",
                 "head a list with from,to,latency_ms,bandwidth_mbit_s (one direction a row) or "
                 "region_a,region_b,delay_ms,bandwidth_gbps (both directions)");
  }

  Status read_pairs(const std::vector<Line>& lines) {
    WEFT_TRY_STATUS(read_header(lines[0]));
    const bool name_peers = world_.peers.empty();
    for (size_t i = 0; i < world_.peers.size(); ++i) {
      members_[world_.peers[i].id].push_back(i);
      const std::string& site = world_.site_of[i];
      if (!site.empty() && site != world_.peers[i].id) members_[site].push_back(i);
    }
    size_t foreign = 0;
    for (size_t i = 1; i < lines.size(); ++i) {
      const Line& line = lines[i];
      if (line.cells.size() != lines[0].cells.size()) {
        return wrong(
            line,
            fmt::format("{} columns, the header has {}", line.cells.size(), lines[0].cells.size()),
            "write every row like the header");
      }
      const std::string from(line.cells[*from_]), to(line.cells[*to_]);
      const auto rate = number_of(line.cells[*rate_]);
      const auto latency = latency_ ? number_of(line.cells[*latency_]) : 0.0;
      if (from.empty() || to.empty() || !rate || *rate <= 0 || !latency || *latency < 0) {
        return wrong(line, "it needs two names, a bandwidth above 0 and a latency of at least 0",
                     "leave the row out where nothing was measured");
      }
      if (name_peers) {
        for (const std::string& name : {from, to}) {
          if (members_of(name).empty()) add_peer(name);
        }
        if (world_.peers.size() > kMaxPeers) {
          return wrong(line, fmt::format("more than {} names", kMaxPeers), "plan with fewer");
        }
      }
      WEFT_TRY_STATUS(check_repeat(line, from, to, {line.number, *latency, *rate}));
      if (!add(from, to, *latency, to_mbit_ * *rate)) ++foreign;
    }
    if (foreign == lines.size() - 1) {
      return make_error(Code::kInvalid,
                        fmt::format("{} names no two peers or sites of the peers given", source_),
                        "use the ids or the sites of peers.toml as names");
    }
    if (foreign > 0) {
      world_.notes.push_back(
          fmt::format("{} rows of {} name neither peers nor sites", foreign, source_));
    }
    return {};
  }

  struct Row {
    size_t number = 0;
    double latency_ms = 0, rate = 0;
  };

  // Two rows of one pair that differ: nobody can say which holds.
  Status check_repeat(const Line& line, std::string from, std::string to, const Row& row) {
    if (!directed_ && to < from) std::swap(from, to);
    const auto [known, fresh] = rows_.try_emplace({from, to}, row);
    const Row& before = known->second;
    if (fresh || (before.latency_ms == row.latency_ms && before.rate == row.rate)) return {};
    return wrong(
        line,
        fmt::format("it says something else of {} and {} than line {}", from, to, before.number),
        directed_ ? "keep one row for each direction"
                  : "keep one row for each pair, or head the list with from,to and give "
                    "each direction a row");
  }

  void add_peer(const std::string& id) {
    members_[id].push_back(world_.peers.size());
    world_.peers.push_back({id});
    world_.site_of.emplace_back();
  }

  // Of a peer itself, of a site all its peers.
  const std::vector<size_t>& members_of(const std::string& name) { return members_[name]; }

  bool add(const std::string& from, const std::string& to, double latency_ms, double mbit_s) {
    bool any = false;
    for (const size_t a : members_of(from)) {
      for (const size_t b : members_of(to)) {
        if (a == b) continue;
        any = true;
        const std::string &one = world_.peers[a].id, &other = world_.peers[b].id;
        world_.links.push_back({one, other, latency_ms, mbit_s});
        if (!directed_) world_.links.push_back({other, one, latency_ms, mbit_s});
      }
    }
    return any;
  }

  const std::string& source_;
  PlannerWorld& world_;
  std::map<std::string, std::vector<size_t>> members_;  // by name of a peer or site
  std::map<std::pair<std::string, std::string>, Row> rows_;
  std::optional<size_t> from_, to_, latency_, rate_;
  double to_mbit_ = 1;
  bool directed_ = false;
};

}  // namespace

Status add_links(std::string_view csv, const std::string& source, PlannerWorld& world) {
  return LinksReader(source, world).read(csv);
}

}  // namespace weft::broker

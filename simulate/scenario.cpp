#include "simulate/scenario.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/toml_table.h"
#include "broker/planner/compression_file.h"
#include "simulate/scenario_links.h"

namespace weft::simulate {
namespace {

constexpr const char* kHelp = "see docs/simulate.md for the keys";
constexpr double kYear = 365 * 86400.0;

class ScenarioReader {
 public:
  ScenarioReader(const toml::table& document, std::string source, const ReadFile& read)
      : document_(document), source_(std::move(source)), read_(read) {}

  Result<Scenario> read() {
    TomlTable top(document_, source_);
    scenario_.seed = static_cast<uint64_t>(top.integer("seed"));
    scenario_.most_s = top.number("most_s", scenario_.most_s, 1, kYear);
    scenario_.link_timeout_s = top.number("link_timeout_s", scenario_.link_timeout_s, 0.1, kYear);
    if (top.has("resume_s")) scenario_.resume_s = top.number("resume_s", 0, 0, kYear);
    scenario_.compute_jitter = top.number("compute_jitter", 0, 0, 2);
    scenario_.measure_error = top.number("measure_error", 0, 0, 2);
    if (const toml::table* broker = top.table("broker")) WEFT_TRY_STATUS(read_broker(*broker));
    if (const toml::table* compression = top.table("compression")) {
      WEFT_TRY(scenario_.compression,
               broker::read_compression(*compression, source_ + ", [compression]"));
    }
    WEFT_TRY_STATUS(each(top, "site", [&](TomlTable& t) { read_site(t); }));
    WEFT_TRY_STATUS(each(top, "link", [&](TomlTable& t) { read_link(t); }));
    WEFT_TRY_STATUS(each(top, "peers", [&](TomlTable& t) { read_peers(t); }));
    WEFT_TRY_STATUS(each(top, "job", [&](TomlTable& t) { read_job(t); }));
    WEFT_TRY_STATUS(each(top, "churn", [&](TomlTable& t) { read_churn(t); }));
    WEFT_TRY_STATUS(each(top, "partition", [&](TomlTable& t) {
      scenario_.partitions.push_back(
          {t.text("site"), t.number("at_s", 0, 0, kYear), t.number("for_s", 0, 0, kYear)});
    }));
    WEFT_TRY_STATUS(each(top, "slowdown", [&](TomlTable& t) { read_slowdown(t); }));
    const bool measured = top.has("links_file");
    const std::string links_file = top.text("links_file");
    WEFT_TRY_STATUS(top.status(kHelp));
    WEFT_TRY_STATUS(check_site_count());
    if (measured) WEFT_TRY_STATUS(read_links_file(links_file));
    WEFT_TRY_STATUS(check());
    return std::move(scenario_);
  }

 private:
  template <typename Read>
  Status each(TomlTable& top, const char* key, const Read& read) {
    size_t number = 0;
    for (const toml::table* table : top.tables(key)) {
      TomlTable reader(*table, fmt::format("{}, [[{}]] {}", source_, key, ++number));
      read(reader);
      WEFT_TRY_STATUS(reader.status(kHelp));
    }
    return {};
  }

  Status read_broker(const toml::table& table) {
    TomlTable reader(table, source_ + ", [broker]");
    BrokerSpec& broker = scenario_.broker;
    broker.site = reader.text("site");
    broker.up_mbit_s = reader.number("up_mbit_s");
    broker.down_mbit_s = reader.number("down_mbit_s");
    broker.heartbeat_s = reader.number("heartbeat_s", broker.heartbeat_s, 0.1, 3600);
    broker.suspect_s = reader.number("suspect_s", broker.suspect_s, 0.1, kYear);
    broker.gone_s = reader.number("gone_s", broker.gone_s, 0.1, kYear);
    broker.tick_s = reader.number("tick_s", broker.tick_s, 0.05, 60);
    broker.broker_timeout_s = reader.number("broker_timeout_s", broker.broker_timeout_s, 1, kYear);
    return reader.status(kHelp);
  }

  void read_site(TomlTable& t) {
    const auto count = t.integer("count", 1, 1, kMostPeers);
    SiteSpec site{t.text("name"),         {},
                  t.number("latency_ms"), t.number("bandwidth_mbit_s"),
                  t.number("up_mbit_s"),  t.number("down_mbit_s")};
    for (int64_t i = 0; i < count; ++i) {
      scenario_.sites.push_back(site);
      if (count == 1) continue;
      scenario_.sites.back().name = fmt::format("{}-{}", site.name, i);
      scenario_.sites.back().family = site.name;
    }
  }

  void read_link(TomlTable& t) {
    SiteLink link{t.text("from"), t.text("to"), t.number("latency_ms"),
                  t.number("bandwidth_mbit_s"), t.number("loss", 0, 0, 0.5)};
    if (link.from.empty() && link.to.empty()) {
      if (scenario_.other_links) t.refuse("it is the second without from and to");
      scenario_.other_links = link;
    } else {
      scenario_.links.push_back(link);
    }
  }

  Status read_links_file(const std::string& path) {
    if (path.empty()) {
      return wrong(source_ + ": links_file names no file", "leave it out, or name a links.csv");
    }
    if (!read_) {
      return wrong(fmt::format("{}: links_file \"{}\" cannot be read here", source_, path),
                   "write its rows as [[link]]");
    }
    WEFT_TRY(const std::string csv, read_(path));
    return add_measured_links(csv, path, scenario_);
  }

  void read_peers(TomlTable& t) {
    PeerGroup group;
    group.name = t.text("name");
    group.site = t.text("site");
    group.count = static_cast<int32_t>(t.integer("count", 1, 1, kMostPeers));
    group.device.memory_bytes =
        static_cast<uint64_t>(t.number("memory_gib", 0, 0, 1 << 20) * (1 << 30));
    group.device.gflops = t.number("gflops", 0, 0.001);
    group.device.memory_gbyte_s = t.number("memory_gbyte_s");
    group.device.op_us = t.number("op_us");
    group.speed_spread = t.number("speed_spread", 0, 0, 2);
    group.up_mbit_s = t.number("up_mbit_s");
    group.down_mbit_s = t.number("down_mbit_s");
    scenario_.peers.push_back(std::move(group));
  }

  void read_job(TomlTable& t) {
    JobGroup job;
    job.name = t.text("name", "job");
    job.count = static_cast<int32_t>(t.integer("count", 1, 1, kMostJobs));
    job.file = t.text("file");
    job.stages = static_cast<int32_t>(t.integer("stages", 0, 0, 4096));
    job.steps = t.integer("steps");
    job.batch = t.integer("batch");
    job.checkpoint_every = t.integer("checkpoint_every");
    job.schedule = t.text("schedule");
    job.precision = t.text("precision");
    job.replan = t.text("replan");
    job.submit_s = t.number("submit_s", job.submit_s, 0, kYear);
    job.every_s = t.number("every_s", 0, 0, kYear);
    if (const toml::table* inner = t.table("transformer")) {
      read_transformer(t, *inner, job.transformer);
      if (!job.file.empty()) t.refuse("it has a file and a transformer; leave one of them out");
    } else if (job.file.empty()) {
      t.refuse("it has neither file nor transformer");
    }
    scenario_.jobs.push_back(std::move(job));
  }

  void read_transformer(TomlTable& job, const toml::table& table, TransformerSpec& spec) {
    TomlTable t(table, "transformer");
    spec.layers = t.integer("layers", spec.layers, 1, 2000);
    spec.width = t.integer("width", spec.width, 1, 1 << 17);
    spec.heads = t.integer("heads", spec.heads, 1, 1024);
    spec.tokens = t.integer("tokens", spec.tokens, 1, 1 << 20);
    spec.vocabulary = t.integer("vocabulary", spec.vocabulary, 2, 1 << 22);
    spec.micro_batch = t.integer("micro_batch", spec.micro_batch, 1, 1 << 16);
    if (const Status status = t.status(kHelp); !status.ok()) {
      job.refuse(status.error().message);
    } else if (spec.width % spec.heads != 0) {
      job.refuse(
          fmt::format("transformer: width {} is no multiple of heads {}", spec.width, spec.heads));
    }
  }

  void read_churn(TomlTable& t) {
    ChurnSpec churn;
    churn.group = t.text("group");
    churn.life_s = t.number("life_s", 0, 0, kYear);
    churn.away_s = t.number("away_s", 0, 0, kYear);
    churn.leave_share = t.number("leave_share", 0, 0, 1);
    churn.trace = t.text("trace");
    scenario_.churn.push_back(std::move(churn));
  }

  void read_slowdown(TomlTable& t) {
    SlowdownSpec slow;
    slow.peers = t.text("peers");
    slow.from = t.text("from");
    slow.to = t.text("to");
    slow.to_share = t.number("share", slow.to_share, 1e-4, 1);
    slow.at_s = t.number("at_s", 0, 0, kYear);
    slow.for_s = t.number("for_s", 0, 0, kYear);
    slow.every_s = t.number("every_s", 0, 0, kYear);
    slow.times = t.integer("times", 1, 1, 1000000);
    if (slow.peers.empty() == (slow.from.empty() || slow.to.empty())) {
      t.refuse("it needs either peers, or from and to");
    } else if (slow.times > 1 && !(slow.for_s > 0 && slow.every_s > slow.for_s)) {
      t.refuse("several times need a for_s, and an every_s that is longer");
    }
    scenario_.slowdowns.push_back(std::move(slow));
  }

  Error wrong(const std::string& message, const std::string& next) const {
    return make_error(Code::kInvalid, message, next);
  }

  // The sites that one with a count stands for; of others none.
  std::vector<std::string> members_of(const std::string& family) const {
    std::vector<std::string> members;
    for (const SiteSpec& site : scenario_.sites) {
      if (!family.empty() && site.family == family) members.push_back(site.name);
    }
    return members;
  }

  // A group of peers at a site that stands for several: one group at each of them.
  void spread_groups() {
    std::vector<PeerGroup> spread;
    for (PeerGroup& group : scenario_.peers) {
      const std::vector<std::string> members = members_of(group.site);
      if (members.empty()) {
        spread.push_back(std::move(group));
        continue;
      }
      for (const std::string& site : members) {
        spread.push_back(group);
        spread.back().site = site;
      }
    }
    scenario_.peers = std::move(spread);
  }

  Status check() {
    spread_groups();
    WEFT_TRY_STATUS(check_broker());
    WEFT_TRY_STATUS(check_sites());
    WEFT_TRY_STATUS(check_names());
    int64_t peers = 0, jobs = 0;
    for (const PeerGroup& group : scenario_.peers) {
      peers += group.count;
      if (group.device.gflops <= 0) {
        return wrong(fmt::format("{}: the peers \"{}\" have no gflops", source_, group.name),
                     "say what they reach: a simulated peer needs a speed");
      }
    }
    for (const JobGroup& job : scenario_.jobs) {
      jobs += job.count;
      if (job.file.empty() && (job.steps <= 0 || job.batch <= 0)) {
        return wrong(fmt::format("{}: job \"{}\" has no steps or no batch", source_, job.name),
                     "a job without a file needs both");
      }
    }
    if (peers == 0 || peers > kMostPeers || jobs == 0 || jobs > kMostJobs) {
      return wrong(fmt::format("{} has {} peers and {} jobs; 1 to {} and 1 to {} are simulated",
                               source_, peers, jobs, kMostPeers, kMostJobs),
                   "write [[peers]] and [[job]] tables");
    }
    return check_churn();
  }

  Status check_broker() const {
    const BrokerSpec& b = scenario_.broker;
    if (b.heartbeat_s < b.suspect_s && b.suspect_s < b.gone_s && 2 * b.tick_s <= b.suspect_s) {
      return {};
    }
    return wrong(fmt::format("{}: [broker] heartbeat_s {}, suspect_s {}, gone_s {}, tick_s {}",
                             source_, b.heartbeat_s, b.suspect_s, b.gone_s, b.tick_s),
                 "heartbeats come before a peer is suspect, that before it is gone; a tick takes "
                 "at most half "
                 "of suspect_s");
  }

  // The planner knows peers by name, traces jobs.
  Status check_names() const {
    std::set<std::string> peers, jobs;
    for (const PeerGroup& group : scenario_.peers) {
      for (int32_t i = 0; i < group.count; ++i) {
        if (peers.insert(peer_name(group, i)).second) continue;
        return wrong(fmt::format("{}: two peers are called {}", source_, peer_name(group, i)),
                     "give every [[peers]] of a site a name of its own");
      }
    }
    for (const SlowdownSpec& slow : scenario_.slowdowns) {
      const bool group = std::any_of(scenario_.peers.begin(), scenario_.peers.end(),
                                     [&](const PeerGroup& g) { return g.name == slow.peers; });
      if (slow.peers.empty() || group || peers.contains(slow.peers)) continue;
      return wrong(fmt::format("{}: a slowdown names the peers \"{}\"", source_, slow.peers),
                   "name a group of [[peers]], or one of them as GROUP-NUMBER@SITE");
    }
    for (const JobGroup& job : scenario_.jobs) {
      for (int32_t i = 0; i < job.count; ++i) {
        if (jobs.insert(job_name(job, i)).second) continue;
        return wrong(fmt::format("{}: two jobs are called {}", source_, job_name(job, i)),
                     "give every [[job]] a name of its own");
      }
    }
    return {};
  }

  // Of one flow between peers of two sites; 0: no limit.
  double rate_between(const std::string& from, const std::string& to) const {
    for (const SiteSpec& site : scenario_.sites) {
      if (from == to && site.name == from) return site.bandwidth_mbit_s;
    }
    for (const broker::PlannerLink& link : scenario_.measured_links) {
      if (link.from == from && link.to == to) return link.bandwidth_mbit_s;
    }
    for (const SiteLink& link : scenario_.links) {
      if ((link.from == from && link.to == to) || (link.from == to && link.to == from)) {
        return link.bandwidth_mbit_s;
      }
    }
    return scenario_.other_links ? scenario_.other_links->bandwidth_mbit_s : 0;
  }

  Status check_site_count() const {
    constexpr size_t kMostSites = 2000;  // ways between sites grow with the square
    if (!scenario_.sites.empty() && scenario_.sites.size() <= kMostSites) return {};
    return wrong(fmt::format("{} has {} sites; 1 to {} are simulated", source_,
                             scenario_.sites.size(), kMostSites),
                 "peers with a line of their own can share a site that has none");
  }

  Status check_sites() {
    std::set<std::string> names;
    for (const SiteSpec& site : scenario_.sites) {
      if (site.name.empty() || !names.insert(site.name).second) {
        return wrong(
            fmt::format("{}: site \"{}\" has no name or is there twice", source_, site.name),
            "give every [[site]] a name of its own");
      }
    }
    const auto known = [&](const std::string& site, const std::string& who) -> Status {
      if (names.contains(site)) return {};
      if (const std::vector<std::string> members = members_of(site); !members.empty()) {
        return wrong(fmt::format("{}: {} names \"{}\", which stands for {} to {}", source_, who,
                                 site, members.front(), members.back()),
                     "name one of them; only the site of [[peers]] may name all");
      }
      return wrong(fmt::format("{}: {} is at site \"{}\", which is none", source_, who, site),
                   "define it as [[site]]");
    };
    if (scenario_.broker.site.empty() && !scenario_.sites.empty()) {
      scenario_.broker.site = scenario_.sites[0].name;
    }
    WEFT_TRY_STATUS(known(scenario_.broker.site, "the broker"));
    for (const PeerGroup& group : scenario_.peers) WEFT_TRY_STATUS(known(group.site, group.name));
    for (const PartitionSpec& cut : scenario_.partitions) {
      WEFT_TRY_STATUS(known(cut.site, "a partition"));
    }
    for (const SlowdownSpec& slow : scenario_.slowdowns) {
      if (!slow.peers.empty()) continue;
      WEFT_TRY_STATUS(known(slow.from, "a slowdown"));
      WEFT_TRY_STATUS(known(slow.to, "a slowdown"));
      if (std::min(rate_between(slow.from, slow.to), rate_between(slow.to, slow.from)) > 0)
        continue;
      return wrong(fmt::format("{}: a slowdown is of the way between {} and {}, which has no "
                               "bandwidth_mbit_s",
                               source_, slow.from, slow.to),
                   "say what one flow reaches there: only that can become less");
    }
    std::set<std::pair<std::string, std::string>> linked;
    for (const SiteLink& link : scenario_.links) {
      WEFT_TRY_STATUS(known(link.from, "a link"));
      WEFT_TRY_STATUS(known(link.to, "a link"));
      if (link.from == link.to || linked.contains({link.from, link.to})) {
        return wrong(fmt::format("{}: the [[link]] of {} and {} is {}", source_, link.from, link.to,
                                 link.from == link.to ? "of one site" : "there twice"),
                     "inside a site its own latency_ms and bandwidth_mbit_s hold");
      }
      linked.insert({link.from, link.to});
      linked.insert({link.to, link.from});
    }
    for (const broker::PlannerLink& link : scenario_.measured_links) {
      linked.insert({link.from, link.to});
    }
    if (scenario_.other_links) return {};
    for (const std::string& a : names) {
      for (const std::string& b : names) {
        if (a == b || linked.contains({a, b})) continue;
        return wrong(fmt::format("{}: nothing links {} to {}", source_, a, b),
                     "write a [[link]] with from and to, or one without both for all other pairs");
      }
    }
    return {};
  }

  Status check_churn() const {
    for (const ChurnSpec& churn : scenario_.churn) {
      const bool named =
          churn.group.empty() ||
          std::any_of(scenario_.peers.begin(), scenario_.peers.end(),
                      [&](const PeerGroup& group) { return group.name == churn.group; });
      if (!named) {
        return wrong(
            fmt::format("{}: [[churn]] of \"{}\", which are no peers", source_, churn.group),
            "name a [[peers]], or leave group out for all");
      }
      if ((churn.life_s > 0) == !churn.trace.empty()) {
        return wrong(fmt::format("{}: [[churn]] needs either life_s or a trace", source_), kHelp);
      }
    }
    return {};
  }

  const toml::table& document_;
  std::string source_;
  const ReadFile& read_;
  Scenario scenario_;
};

}  // namespace

std::string peer_name(const PeerGroup& group, int32_t number) {
  return group.count == 1 ? fmt::format("{}@{}", group.name, group.site)
                          : fmt::format("{}-{}@{}", group.name, number, group.site);
}

std::string job_name(const JobGroup& group, int32_t number) {
  return group.count == 1 ? group.name : fmt::format("{}-{}", group.name, number);
}

Result<Scenario> parse_scenario(std::string_view text, const std::string& source,
                                const ReadFile& read) {
  WEFT_TRY(const toml::table document, parse_toml(text, source));
  return ScenarioReader(document, source, read).read();
}

}  // namespace weft::simulate

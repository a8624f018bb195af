// bench-planner: OP-Fence against other rules on one network, against everything on small problems,
// and its time to solve. Prints JSON lines; bench/planner makes tables of them.
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <cstring>

#include "base/os/file.h"
#include "bench/planner_rules.h"
#include "broker/planner/links_file.h"
#include "broker/planner/planner.h"
#include "broker/planner/search.h"
#include "job/names.h"
#include "tests/unit/planner/problems.h"
#include "tests/unit/planner/worlds.h"

namespace weft::bench {
namespace {

using broker::score_layout;
using broker::Scored;
using broker::testing::PlannedJob;
using broker::testing::site_of;
using broker::testing::SiteShape;
using broker::testing::world_of;

struct Card {
  const char* name;
  double tflops, memory_gib;  // half precision, peak
};
constexpr Card kCards[] = {{"4090", 165, 24}, {"2080ti", 54, 11}, {"3080", 59.5, 10}};
constexpr double kReached = 0.4;  // of the peak (methods, section 4)
constexpr double kMebibyte = 1 << 20;

// GPT-2 XL, micro-batch of one sequence of 1024: embedding, 48 blocks, head; half-precision
// borders.
Problem gpt2_xl(int32_t micro_batches) {
  constexpr double kBlockFlops = 69.6e9, kHeadFlops = 165e9;
  constexpr double kBorder = 3.1 * kMebibyte, kBlockState = 491e6, kTableState = 1.29e9;
  Problem problem;
  problem.chain = broker::Chain(50);
  broker::Chain& chain = problem.chain;
  for (int32_t a = 0; a <= 50; ++a) {
    for (int32_t b = a + 1; b <= 50; ++b) {
      const bool first = a == 0, last = b == 50;
      const double blocks = b - a - (first ? 1 : 0) - (last ? 1 : 0);
      chain.fixed_bytes[chain.at(a, b)] = blocks * kBlockState + (first || last ? kTableState : 0);
      chain.stash_bytes[chain.at(a, b)] = kBorder + 16 * blocks * kBorder;
    }
  }
  for (size_t cut = 1; cut < 50; ++cut)
    chain.forward_bytes[cut] = chain.backward_bytes[cut] = kBorder;
  problem.schedule = {job::PipelineSchedule::k1F1B, micro_batches, 1};
  std::vector<double> flops{0, 1e6};
  for (int block = 0; block < 48; ++block) flops.push_back(flops.back() + kBlockFlops);
  flops.push_back(flops.back() + kHeadFlops);
  problem.forward_s = {flops};
  return problem;
}

void add_cards(Problem& problem, const std::vector<Card>& cards) {
  const std::vector<double> flops = problem.forward_s[0];
  problem.forward_s.clear();
  for (const Card& card : cards) {
    std::vector<double> forward, backward;
    for (const double f : flops) {
      forward.push_back(f / (kReached * card.tflops * 1e12));
      backward.push_back(2 * forward.back());
    }
    problem.forward_s.push_back(std::move(forward));
    problem.backward_s.push_back(std::move(backward));
    problem.memory_bytes.push_back(0.9 * card.memory_gib * 1024 * kMebibyte);
  }
}

std::vector<Card> mixed_cards(size_t count, Rng& rng) {
  std::vector<Card> cards;
  for (size_t i = 0; i < count; ++i) cards.push_back(kCards[rng.below(3)]);
  return cards;
}

// Sites of eight equal cards, LANs of three tiers, 8 to 100 Mbit/s between (methods, finding 2).
Problem six_sites(uint64_t seed, int32_t micro_batches) {
  Rng rng(seed);
  const double lan[] = {10000, 10000, 10000, 1000, 1000, 100};
  Problem problem = gpt2_xl(micro_batches);
  std::vector<Card> cards;
  for (size_t i = 0; i < 48; ++i) cards.push_back(kCards[i / 8 / 2]);
  add_cards(problem, cards);
  problem.network = broker::Network(48);
  double wan[6][6];
  for (auto& row : wan) {
    for (double& rate : row) rate = 8 + 92 * rng.uniform();
  }
  for (size_t a = 0; a < 48; ++a) {
    for (size_t b = 0; b < 48; ++b) {
      if (a == b) continue;
      const bool near = a / 8 == b / 8;
      problem.network.set(a, b, near ? 2e-4 : 2e-2,
                          broker::seconds_per_byte_at(near ? lan[a / 8] : wan[a / 8][b / 8]));
    }
  }
  return problem;
}

// A network of a file; of named regions each has `each` peers on a LAN of 10 Gbit/s.
Result<Problem> network_of(const std::string& path, size_t each, uint64_t seed,
                           int32_t micro_batches) {
  WEFT_TRY(const std::string text, os::read_file(path));
  broker::PlannerWorld names, world;
  WEFT_TRY_STATUS(broker::add_links(text, path, names));
  std::vector<std::string> ids;
  for (size_t i = 0; i < names.peers.size() * each; ++i) {
    const std::string& site = names.peers[i / each].id;
    ids.push_back(each == 1 ? site : fmt::format("{}-{}", site, i % each));
    world.peers.push_back({ids.back()});
    world.site_of.push_back(site);
    for (size_t j = i / each * each; j < i; ++j) {
      world.links.push_back({ids[j], ids[i], 0.2, 10000});
    }
  }
  WEFT_TRY_STATUS(broker::add_links(text, path, world));
  Rng rng(seed);
  Problem problem = gpt2_xl(micro_batches);
  add_cards(problem, mixed_cards(ids.size(), rng));
  problem.network = broker::Network(ids, world.links, {});
  return problem;
}

double judged(const Problem& problem, const Layout& layout) {
  return score_layout(problem, layout).step_s;
}

Problem without_memory(Problem problem) {
  for (double& room : problem.memory_bytes) room = std::numeric_limits<double>::infinity();
  return problem;
}

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

void print_row(const std::string& network, int32_t m, const char* rule, double fits,
               double waived) {
  const auto number = [](double value) {
    return std::isfinite(value) ? fmt::format("{:.6g}", value) : std::string("null");
  };
  fmt::print(
      "{{\"kind\":\"rules\",\"network\":\"{}\",\"micro_batches\":{},\"rule\":\"{}\","
      "\"step_s\":{},\"step_without_memory_s\":{}}}\n",
      network, m, rule, number(fits), number(waived));
}

template <typename Layouts>
void compare_rule(const Problem& problem, const std::string& network, const char* rule,
                  const Layouts& layouts) {
  const Problem waived = without_memory(problem);
  double best = std::numeric_limits<double>::infinity(), best_waived = best;
  for (const Layout& layout : layouts) {
    best = std::min(best, judged(problem, layout));
    best_waived = std::min(best_waived, judged(waived, layout));
  }
  print_row(network, problem.schedule.micro_batches, rule, best, best_waived);
}

void compare(const Problem& problem, const std::string& network, uint64_t seed) {
  const size_t most = std::min(problem.peers(), static_cast<size_t>(problem.chain.units));
  Rng rng(seed);
  const Problem waived = without_memory(problem);
  std::vector<double> random, random_waived;
  for (int i = 0; i < 20; ++i) {
    Order order = given_order(problem);
    rng.shuffle(order);
    random.push_back(judged(problem, equal_units(problem, order)));
    random_waived.push_back(judged(waived, equal_units(problem, order)));
  }
  print_row(network, problem.schedule.micro_batches, "random order, equal split", mean(random),
            mean(random_waived));
  compare_rule(problem, network, "given order, equal FLOPs",
               std::vector<Layout>{equal_flops(problem, given_order(problem))});
  std::vector<Layout> greedy, genetic, genetic_shares;
  for (size_t stages = 1; stages <= most; ++stages) {
    greedy.push_back(greedy_by_speed(problem, stages));
  }
  compare_rule(problem, network, "fastest first, by speed, best count", greedy);
  for (size_t stages = 2; stages <= most; stages += stages < 8 ? 1 : 4) {
    const Order order = GeneticSearch(problem, stages, seed).run();
    genetic.push_back(equal_flops(problem, order));
    std::vector<double> shares;
    for (const int32_t peer : order) {
      shares.push_back(1 / problem.work(peer, 0, problem.chain.units));
    }
    genetic_shares.push_back(split_by_shares(problem, order, shares));
  }
  compare_rule(problem, network, "genetic after DT-FM, best count", genetic);
  compare_rule(problem, network, "genetic, split by speed", genetic_shares);
  const broker::Found found = broker::search(problem);
  const double infinity = std::numeric_limits<double>::infinity();
  const auto of = [&](const std::optional<Scored>& s) { return s ? s->step_s : infinity; };
  print_row(network, problem.schedule.micro_batches, "best single peer", of(found.single_peer),
            infinity);
  print_row(network, problem.schedule.micro_batches, "best single site", of(found.single_site),
            infinity);
  print_row(network, problem.schedule.micro_batches, "OP-Fence",
            found.layouts.empty() ? infinity : found.layouts.front().step_s, infinity);
}

void compare_with_everything(uint64_t seed, int count, bool compress) {
  for (const int32_t peers : {3, 4, 5, 6, 7}) {
    double sum = 0, worst = 0;
    int counted = 0;
    for (int i = 0; i < (peers == 7 ? std::min(count, 6) : count); ++i) {
      broker::testing::ProblemShape shape;
      shape.peers = peers;
      shape.units = peers < 6 ? 8 : 7;
      shape.micro_batches = i % 2 == 0 ? 8 : 32;
      shape.tight_memory = i % 3 == 0;
      shape.access = i % 4 == 1;
      shape.compress = compress;
      const Problem problem = broker::testing::random_problem(
          derive_seed({seed, static_cast<uint64_t>(peers), static_cast<uint64_t>(i)}), shape);
      const Scored best = broker::testing::Exhaustive(problem).best();
      if (!std::isfinite(best.step_s)) continue;
      const broker::Found found = broker::search(problem);
      const double ratio =
          found.layouts.empty() ? HUGE_VAL : found.layouts.front().step_s / best.step_s;
      sum += ratio;
      worst = std::max(worst, ratio);
      ++counted;
    }
    fmt::print(
        "{{\"kind\":\"optimum\",\"peers\":{},\"compressed\":{},\"problems\":{},"
        "\"mean_ratio\":{:.5f},\"worst_ratio\":{:.5f}}}\n",
        peers, compress, counted, sum / std::max(counted, 1), worst);
    std::fflush(stdout);
  }
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void time_solution(uint64_t seed, int32_t peers, bool tight, bool compress) {
  broker::testing::ProblemShape shape;
  shape.peers = peers;
  shape.units = 200;
  shape.micro_batches = 64;
  shape.tight_memory = tight;
  shape.compress = compress;
  const Problem problem = broker::testing::random_problem(seed, shape);
  const auto begin = std::chrono::steady_clock::now();
  const std::clock_t cpu = std::clock();
  const broker::Found found = broker::search(problem);
  const double wall_s = seconds_since(begin);
  fmt::print(
      "{{\"kind\":\"time\",\"peers\":{},\"units\":200,\"tight_memory\":{},\"compressed\":{},"
      "\"seconds\":{:.3f},\"cpu_s\":{:.3f},\"stages\":{}}}\n",
      peers, tight, compress, wall_s, static_cast<double>(std::clock() - cpu) / CLOCKS_PER_SEC,
      found.layouts.empty() ? 0 : found.layouts.front().layout.ends.size());
  std::fflush(stdout);
}

void time_solutions(uint64_t seed) {
  for (const int32_t peers : {8, 16, 32, 64, 128, 256, 512}) {
    for (const bool tight : {false, true}) {
      for (const bool compress : {false, true}) time_solution(seed, peers, tight, compress);
    }
  }
}

// What the broker calls for a job, from graph to report.
void time_job(uint64_t seed, const SiteShape& shape, bool compress,
              job::PipelineSchedule schedule) {
  PlannedJob job;
  job.spec.pipeline.schedule = schedule;
  broker::PlannerOptions options;
  if (compress) options.compression = broker::testing::random_compression(seed);
  const broker::PlannerWorld world = world_of(seed, shape);
  const auto begin = std::chrono::steady_clock::now();
  const auto report = broker::plan_job(job.graph, job.spec, world.peers, world.links, options);
  const double wall_s = seconds_since(begin);
  fmt::print(
      "{{\"kind\":\"job\",\"peers\":{},\"memory_gib\":{},\"compressed\":{},\"schedule\":\"{}\","
      "\"seconds\":{:.3f},\"stages\":{},\"step_s\":{}}}\n",
      world.peers.size(), shape.memory_gib, compress, job::name_of(schedule), wall_s,
      report.ok() ? report->plan.stages.size() : 0,
      report.ok() ? fmt::format("{:.6g}", report->prediction.step_s) : "null");
  std::fflush(stdout);
}

void time_jobs(uint64_t seed) {
  for (const SiteShape& shape : {SiteShape{4, 4, 80},
                                 {4, 4, 4},
                                 {8, 16, 80},
                                 {8, 16, 3},
                                 {8, 64, 80},
                                 {8, 64, 3},
                                 {8, 64, 1.6}}) {
    for (const bool compress : {false, true}) {
      using enum job::PipelineSchedule;
      for (const auto schedule : {k1F1B, kZbH1, kAuto}) {
        time_job(seed, shape, compress, schedule);
      }
    }
  }
}

// What a plan of all peers with "auto" takes beside what the same planner finds with less to choose
// from: over one of the sites, or under one of the schedules.
void compare_with_less(uint64_t seed, const SiteShape& shape, int count) {
  using enum job::PipelineSchedule;
  PlannedJob job;
  struct Ratio {
    double sum = 0, worst = 0;
    int count = 0;
    void add(double ours, double other_s) {
      if (!std::isfinite(other_s)) return;
      sum += ours / other_s;
      worst = std::max(worst, ours / other_s);
      ++count;
    }
    std::string text() const {
      return count == 0 ? "null" : fmt::format("[{:.4f},{:.3f}]", sum / count, worst);
    }
  };
  Ratio site, plain, split;
  double seconds = 0;
  int planned = 0;
  for (int i = 0; i < count; ++i) {
    const broker::PlannerWorld world =
        world_of(derive_seed({seed, static_cast<uint64_t>(i)}), shape);
    const auto begin = std::chrono::steady_clock::now();
    const double step_s = job.step_s(world, kAuto);
    seconds += seconds_since(begin);
    if (!std::isfinite(step_s)) continue;
    ++planned;
    double alone = HUGE_VAL;
    for (int32_t k = 0; k < shape.sites; ++k) {
      alone = std::min(alone, job.step_s(site_of(world, k), kAuto));
    }
    site.add(step_s, alone);
    plain.add(step_s, job.step_s(world, k1F1B));
    split.add(step_s, job.step_s(world, kZbH1));
  }
  fmt::print(
      "{{\"kind\":\"less\",\"sites\":{},\"peers\":{},\"memory_gib\":{},\"problems\":{},\"site\":{},"
      "\"1f1b\":{},\"zb-h1\":{},\"seconds\":{:.3f}}}\n",
      shape.sites, shape.sites * shape.each, shape.memory_gib, planned, site.text(), plain.text(),
      split.text(), seconds / count);
  std::fflush(stdout);
}

void compare_all_with_less(uint64_t seed) {
  for (const SiteShape& shape : {SiteShape{2, 6, 4},
                                 {4, 4, 4},
                                 {2, 8, 4},
                                 {4, 12, 3},
                                 {8, 16, 3},
                                 {8, 16, 6},
                                 {8, 16, 80},
                                 {20, 4, 4},
                                 {8, 64, 3},
                                 {8, 64, 1.6}}) {
    compare_with_less(seed, shape, shape.sites * shape.each > 100 ? 4 : 8);
  }
}

// The least steps of the layouts that one search finds, played under 1F1B and under the better of
// it and ZB-H1.
struct Played {
  double plain_s = std::numeric_limits<double>::infinity(), best_s = plain_s;
  double seconds = 0;  // of the search

  Played with(const Played& other) const {
    return {std::min(plain_s, other.plain_s), std::min(best_s, other.best_s),
            seconds + other.seconds};
  }
};

Played search_and_play(Problem problem, job::PipelineSchedule searched, double effort) {
  const auto under = [&](job::PipelineSchedule kind) -> const Problem& {
    problem.schedule.kind = kind;
    return problem;
  };
  broker::SearchOptions options;
  options.operations *= effort;
  const auto begin = std::chrono::steady_clock::now();
  const broker::Found found = broker::search(under(searched), options);
  Played result;
  for (const Scored& scored : found.layouts) {
    const double plain_s = judged(under(job::PipelineSchedule::k1F1B), scored.layout);
    const double split_s = judged(under(job::PipelineSchedule::kZbH1), scored.layout);
    result.plain_s = std::min(result.plain_s, plain_s);
    result.best_s = std::min({result.best_s, plain_s, split_s});
  }
  result.seconds = seconds_since(begin);
  return result;
}

// What a search under one schedule finds for "auto", and two of half the work each; "auto" itself
// searches whole under both. Of half the problems activations are what
// fills memory, of which ZB-H1 keeps more.
void compare_auto(uint64_t seed, int32_t peers, int count) {
  constexpr double kHeavy = 10;
  struct Rule {
    const char* name;
    double sum = 0, worst = 0, seconds = 0;
    int found = 0;
  };
  std::vector<Rule> rules = {{"1F1B"}, {"ZB-H1"}, {"half each"}};
  int problems = 0;
  for (int i = 0; i < count; ++i) {
    broker::testing::ProblemShape shape;
    shape.peers = peers;
    shape.units = 100;
    shape.micro_batches = i / 4 % 2 == 0 ? 16 : 64;
    shape.tight_memory = i % 2 == 1;
    shape.access = i % 3 == 1;
    Problem problem = broker::testing::random_problem(
        derive_seed({seed, static_cast<uint64_t>(peers), static_cast<uint64_t>(i)}), shape);
    if (i % 4 >= 2) {
      for (double& bytes : problem.chain.stash_bytes) bytes *= kHeavy;
    }
    using enum job::PipelineSchedule;
    const Played plain = search_and_play(problem, k1F1B, 1),
                 split = search_and_play(problem, kZbH1, 1);
    const Played halves =
        search_and_play(problem, k1F1B, 0.5).with(search_and_play(problem, kZbH1, 0.5));
    const std::vector<Played> played = {plain, split, halves};
    double best = HUGE_VAL;
    for (const Played& p : played) best = std::min(best, p.best_s);
    if (!std::isfinite(best)) continue;
    ++problems;
    for (size_t rule = 0; rule < rules.size(); ++rule) {
      rules[rule].seconds += played[rule].seconds;
      if (!std::isfinite(played[rule].best_s)) continue;
      ++rules[rule].found;
      rules[rule].sum += played[rule].best_s / best;
      rules[rule].worst = std::max(rules[rule].worst, played[rule].best_s / best);
    }
  }
  for (const Rule& rule : rules) {
    fmt::print(
        "{{\"kind\":\"auto\",\"peers\":{},\"searched\":\"{}\",\"problems\":{},\"found\":{},"
        "\"mean_ratio\":{:.4f},\"worst_ratio\":{:.3f},\"seconds\":{:.3f}}}\n",
        peers, rule.name, problems, rule.found, rule.sum / std::max(rule.found, 1), rule.worst,
        rule.seconds / std::max(problems, 1));
  }
  std::fflush(stdout);
}

int run(const std::string& what, const std::string& path, size_t each, uint64_t seed) {
  if (what == "time") {
    time_solutions(seed);
  } else if (what == "optimum") {
    for (const bool compress : {false, true}) compare_with_everything(seed, 20, compress);
  } else if (what == "jobs") {
    time_jobs(seed);
  } else if (what == "less") {
    compare_all_with_less(seed);
  } else if (what == "auto") {
    for (const int32_t peers : {8, 16, 32, 64, 128, 512}) compare_auto(seed, peers, 24);
  } else if (what == "sites" || what == "network") {
    for (const int32_t micro_batches : {32, 128}) {
      Result<Problem> problem = what == "sites" ? Result<Problem>(six_sites(seed, micro_batches))
                                                : network_of(path, each, seed, micro_batches);
      if (!problem.ok()) {
        fmt::print(stderr, "{}\n", problem.error().text());
        return 1;
      }
      compare(*problem, what == "sites" ? "six sites" : path, seed);
    }
  } else {
    return 2;
  }
  return 0;
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  const std::string path = argc > 3 ? argv[3] : "";
  const size_t each = argc > 4 ? std::strtoull(argv[4], nullptr, 10) : 1;
  const int code = weft::bench::run(what, path, each, seed);
  if (code == 2) {
    fmt::print(
        stderr,
        "bench-planner time|jobs|less|optimum|auto|sites|network SEED [FILE [PEERS_EACH]]\n");
  }
  return code;
}

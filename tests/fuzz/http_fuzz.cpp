// Requests to the broker's API, parted by a byte of one: "METHOD TARGET" on the first line, the
// body behind it. The caller holds the user's token, so that every handler is reached.
#include "net/http/uri.h"
#include "tests/fuzz/fuzz_broker.h"

namespace weft::fuzz {
namespace {

constexpr char kNext = '\x01';
constexpr int kMostRequests = 8;

std::string nested(int depth) {
  const auto count = static_cast<size_t>(depth);
  return "{\"spec\":" + std::string(count, '[') + std::string(count, ']') + "}";
}

void request(Broker& broker, std::string_view input) {
  const std::string_view line = input.substr(0, std::min(input.find('\n'), input.size()));
  const size_t space = std::min(line.find(' '), line.size());
  const auto target = net::parse_target(line.substr(std::min(space + 1, line.size())));
  if (!target) return;
  WEFT_CHECK(target->path.starts_with('/'));
  const auto body = input.substr(std::min(line.size() + 1, input.size()));
  const auto answer = broker.call(std::string(line.substr(0, space)), target->path, target->query,
                                  std::string(body));
  WEFT_CHECK(answer.status >= 200 && answer.status < 600);
  if (answer.status >= 400) {
    WEFT_CHECK(nlohmann::json::accept(answer.body));
  }
  broker.later();
}

}  // namespace

std::vector<std::string> seeds() {
  const std::string submission = submission_json().dump(), next(1, kNext);
  const std::string cancel = "POST /api/v1/jobs/j-1/cancel\n{\"reason\":\"enough\"}";
  const std::string request_pem =
      "-----BEGIN CERTIFICATE REQUEST-----\\nMA==\\n-----END CERTIFICATE REQUEST-----";
  return {"POST /api/v1/jobs\n" + submission,
          "POST /api/v1/plans\n" + submission,
          "POST /api/v1/jobs\n" + nested(20000),
          "GET /api/v1/jobs\n" + next + "GET /api/v1/cluster\n" + next + "GET /api/v1/peers\n",
          "GET /api/v1/jobs/j-1\n",
          "GET /api/v1/jobs/j-1/events?after=0&wait_ms=10\n",
          "GET /api/v1/jobs/j-1/metrics?after=-1\n",
          "GET /api/v1/jobs/j-1/logs?stage=0&after=0&limit=10\n",
          "GET /api/v1/jobs/j-1/explain\n",
          "GET /api/v1/jobs/j-1/checkpoints\n",
          cancel,
          cancel + next + "POST /api/v1/jobs/j-1/resume\n{\"stages\":1,\"steps\":40}",
          cancel + next + "DELETE /api/v1/jobs/j-1\n" + next + "GET /api/v1/jobs\n",
          "POST /api/v1/invites\n{\"ttl_s\":60,\"uses\":2}",
          "POST /api/v1/peers/p-1/drain\n",
          "DELETE /api/v1/peers/p-1\n",
          "GET /metrics\n",
          "GET /api/v1/jobs/%6a-1\n",
          "POST /api/v1/join\n{\"token\":\"t\",\"request_pem\":\"" + request_pem +
              "\",\"curve_public\":\"" + std::string(40, 'c') + "\",\"name\":\"n\"}"};
}

}  // namespace weft::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weft;
  std::string_view left = fuzz::text_of(data, size);
  fuzz::with_broker([&](fuzz::Broker& broker) {
    for (int i = 0; i < fuzz::kMostRequests && !left.empty(); ++i) {
      const size_t end = std::min(left.find(fuzz::kNext), left.size());
      fuzz::request(broker, left.substr(0, end));
      left.remove_prefix(std::min(end + 1, left.size()));
    }
  });
  return 0;
}

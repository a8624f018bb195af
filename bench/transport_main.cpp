// bench-transport: one end of a data link under load, or a baseline of it. bench/transport starts
// it. Prints one line of JSON: bytes and CPU seconds of a window, delays of urgent messages.
//
//   weft send|receive   a TlsEndpoint: bulk activations one way, one small gradient back for each,
//                       and if asked an urgent message every so many ms
//   … --burst N         messages come as those of a pipeline do: N of them, --gap-ms apart, then a
//                       pause of --idle-ms; the receiver tells the delay of each
//   plain send|receive  asio::ssl::stream in a coroutine loop, nothing else; the system's
//                       congestion control or --congestion
//   seal                AES-128-GCM alone, one thread, records of 16 KiB: no sockets
//   line                how far apart the processors are (cache_line.h)
#include <fmt/format.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <boost/asio.hpp>
#include <boost/asio/ssl.hpp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/log.h"
#include "base/os/net.h"
#include "bench/cache_line.h"
#include "net/tls/context.h"
#include "net/tls/tls_endpoint.h"

// g++ 12 takes Asio's coroutine frame allocation for a mismatch with its own deallocation.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"

namespace weft::net {
namespace {

namespace asio = boost::asio;
using asio::as_tuple;
using asio::use_awaitable;
using asio::ip::tcp;
using nlohmann::json;

struct Options {
  std::string what, role, certificates = ".", host = "127.0.0.1", to = "127.0.0.1", congestion;
  int port = 0, to_port = 0, streams = 1, window = 8;
  int burst = 0;  // 0: always more to send
  double seconds = 2, warmup = 1, urgent_ms = 0, gap_ms = 30, idle_ms = 800;
  int64_t message_bytes = 4 << 20;
};

Result<Options> parse(int argc, char** argv) {
  Options o;
  int i = 1;
  if (i < argc) o.what = argv[i++];
  if (o.what != "seal" && o.what != "line" && i < argc) o.role = argv[i++];
  for (; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    const char* value = argv[i + 1];
    if (name == "--certificates") {
      o.certificates = value;
    } else if (name == "--host") {
      o.host = value;
    } else if (name == "--to") {
      o.to = value;
    } else if (name == "--port") {
      o.port = std::atoi(value);
    } else if (name == "--to-port") {
      o.to_port = std::atoi(value);
    } else if (name == "--streams") {
      o.streams = std::atoi(value);
    } else if (name == "--window") {
      o.window = std::atoi(value);
    } else if (name == "--seconds") {
      o.seconds = std::atof(value);
    } else if (name == "--warmup") {
      o.warmup = std::atof(value);
    } else if (name == "--urgent-ms") {
      o.urgent_ms = std::atof(value);
    } else if (name == "--burst") {
      o.burst = std::atoi(value);
    } else if (name == "--gap-ms") {
      o.gap_ms = std::atof(value);
    } else if (name == "--idle-ms") {
      o.idle_ms = std::atof(value);
    } else if (name == "--congestion") {
      o.congestion = value;
    } else if (name == "--message-bytes") {
      o.message_bytes = std::atoll(value);
    } else {
      return make_error(Code::kInvalid, fmt::format("unknown option {}", name));
    }
  }
  const bool known =
      o.what == "seal" || o.what == "line" ||
      ((o.what == "weft" || o.what == "plain") && (o.role == "send" || o.role == "receive"));
  if (!known) return make_error(Code::kInvalid, "usage: bench-transport weft|plain send|receive …");
  return o;
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto of = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return of(usage.ru_utime) + of(usage.ru_stime);
}

// Counts from the end of the warm-up to the end of the window.
class Window {
 public:
  explicit Window(const Options& o)
      : begin_(monotonic_seconds() + o.warmup), end_(begin_ + o.seconds) {}
  void count(int64_t bytes) {
    const double now = monotonic_seconds();
    if (now < begin_ || now > end_) return;
    if (bytes_ == 0) {
      first_ = now;
      first_bytes_ = bytes;
      cpu_ = cpu_seconds();
    }
    bytes_ += bytes;
    last_ = now;
    cpu_last_ = cpu_seconds();
  }
  bool over(double since = 0) const { return monotonic_seconds() > end_ + since; }
  bool open() const { return monotonic_seconds() >= begin_ && !over(); }
  // The first count only starts the clock.
  json report() const {
    const double seconds = last_ - first_;
    return {
        {"bytes", bytes_ - first_bytes_}, {"seconds", seconds}, {"cpu_seconds", cpu_last_ - cpu_}};
  }

 private:
  double begin_, end_, first_ = 0, last_ = 0, cpu_ = 0, cpu_last_ = 0;
  int64_t bytes_ = 0, first_bytes_ = 0;
};

// ---- weft

constexpr int32_t kSender = 0;

Result<std::unique_ptr<TlsEndpoint>> endpoint_of(const Options& o, int32_t stage, int port) {
  TlsEndpointOptions t;
  t.job = "bench";
  t.stage = stage;
  t.peer = fmt::format("p{}", stage);
  t.listen_host = o.host;
  t.listen_port = static_cast<uint16_t>(port);
  t.certificate_path = fmt::format("{}/p{}.pem", o.certificates, stage);
  t.key_path = fmt::format("{}/p{}.key", o.certificates, stage);
  t.ca_path = o.certificates + "/ca.pem";
  for (int32_t i = 1; i <= o.streams; ++i) {
    t.edges.push_back({static_cast<uint32_t>(i), kSender, i, o.window, o.window,
                       o.burst > 0 ? static_cast<uint64_t>(o.message_bytes) : 0, 0});
  }
  return TlsEndpoint::listen(t);
}

MessageKey key_of(MessageKind kind, uint64_t step, uint32_t edge, int32_t from) {
  MessageKey key;
  key.epoch = 1;
  key.step = step;
  key.edge = edge;
  key.kind = kind;
  key.from = from;
  return key;
}

Status give(Endpoint& endpoint, int32_t to, const MessageKey& key, const Buffer& bytes) {
  Message m;
  m.key = key;
  m.dtype = DType::kUint8;
  m.sizes = {static_cast<int64_t>(bytes.size())};
  m.strides = {1};
  m.bytes = bytes;
  return endpoint.send(to, std::move(m));
}

Status wait_briefly(Endpoint& endpoint, int32_t ms) {
  auto waited = endpoint.wait(ms);
  if (!waited && waited.error().code != Code::kTimeout) return waited;
  return {};
}

void stamp(std::vector<std::byte>& bytes) {
  const double now = monotonic_seconds();
  std::memcpy(bytes.data(), &now, sizeof now);
}

Buffer stamped(size_t size = 1024) {
  std::vector<std::byte> bytes(size);
  stamp(bytes);
  return Buffer(std::move(bytes));
}

double delay_ms(std::span<const std::byte> bytes) {
  double then = 0;
  std::memcpy(&then, bytes.data(), sizeof then);
  return 1000 * (monotonic_seconds() - then);
}

// Milliseconds to the message after that one, in bursts.
double pause_ms(const Options& o, uint64_t message) {
  return (message + 1) % static_cast<uint64_t>(o.burst) == 0 ? o.idle_ms : o.gap_ms;
}

// Sends bursts until the receiver has left.
Status drive_bursts(const Options& o, Endpoint& endpoint) {
  const auto size = static_cast<size_t>(o.message_bytes);
  double next = monotonic_seconds() + o.warmup;
  for (uint64_t sent = 0, back = 0;;) {
    while (endpoint.take(key_of(MessageKind::kGradient, back, 1, 1))) ++back;
    const double now = monotonic_seconds();
    if (now >= next) {
      WEFT_TRY_STATUS(
          give(endpoint, 1, key_of(MessageKind::kActivation, sent, 1, kSender), stamped(size)));
      next += pause_ms(o, sent++) / 1000;
    }
    const double left_ms = (next - monotonic_seconds()) * 1000;
    WEFT_TRY_STATUS(wait_briefly(endpoint, std::clamp(static_cast<int32_t>(left_ms), 0, 100)));
  }
}

// Sends until the receivers, who stay longer than any window, have left.
Status drive_sender(const Options& o, Endpoint& endpoint, Window& window) {
  std::vector<std::byte> random(static_cast<size_t>(o.message_bytes));
  for (size_t i = 0; i < random.size(); ++i)
    random[i] = static_cast<std::byte>(i * 2654435761U >> 13);
  const Buffer bulk(std::move(random));
  std::vector<uint64_t> sent(static_cast<size_t>(o.streams)), back(sent);
  double next_urgent = monotonic_seconds();
  uint64_t urgent = 0;
  for (;;) {
    for (int32_t i = 1; i <= o.streams; ++i) {
      const auto s = static_cast<size_t>(i - 1);
      const auto edge = static_cast<uint32_t>(i);
      while (endpoint.take(key_of(MessageKind::kGradient, back[s], edge, i))) {
        ++back[s];
        window.count(o.message_bytes);
      }
      while (sent[s] < back[s] + static_cast<uint64_t>(o.window)) {
        WEFT_TRY_STATUS(
            give(endpoint, i, key_of(MessageKind::kActivation, sent[s]++, edge, kSender), bulk));
      }
    }
    const double now = monotonic_seconds();
    if (o.urgent_ms > 0 && now >= next_urgent) {
      WEFT_TRY_STATUS(
          give(endpoint, 1, key_of(MessageKind::kNorms, urgent++, 0, kSender), stamped()));
      next_urgent += o.urgent_ms / 1000;
    }
    const double pause_ms = o.urgent_ms > 0 ? (next_urgent - now) * 1000 : 100;
    WEFT_TRY_STATUS(wait_briefly(endpoint, std::clamp(static_cast<int32_t>(pause_ms), 0, 100)));
  }
}

Result<json> send_weft(const Options& o) {
  WEFT_TRY(const auto endpoint, endpoint_of(o, kSender, o.port));
  std::vector<Neighbour> others;
  for (int32_t i = 1; i <= o.streams; ++i) {
    others.push_back({i, fmt::format("p{}", i), o.to, static_cast<uint16_t>(o.to_port + i)});
  }
  WEFT_TRY_STATUS(endpoint->connect(others, 20000));
  Window window(o);
  auto ended = o.burst > 0 ? drive_bursts(o, *endpoint) : drive_sender(o, *endpoint, window);
  if (!window.over()) return std::move(ended).error();
  return window.report();
}

// One receiving stage. It stays until all are over, the sender's window too, which may have begun
// later: the first to leave ends the sender.
constexpr double kLingerSeconds = 0.3;
Result<json> receive_stage(const Options& o, int32_t stage, std::atomic<int>& over) {
  WEFT_TRY(const auto endpoint, endpoint_of(o, stage, o.port + stage));
  WEFT_TRY_STATUS(
      endpoint->connect({{kSender, "p0", o.to, static_cast<uint16_t>(o.to_port)}}, 20000));
  Window window(o);
  const auto edge = static_cast<uint32_t>(stage);
  uint64_t next = 0, urgent = 0;
  std::vector<double> delays_ms;
  for (bool counted = false; over < o.streams;) {
    if (window.over(kLingerSeconds) && !counted) {
      counted = true;
      ++over;
    }
    while (const auto m = endpoint->take(key_of(MessageKind::kActivation, next, edge, kSender))) {
      window.count(o.message_bytes);
      if (o.burst > 0) delays_ms.push_back(delay_ms(m->bytes.bytes()));
      Message none;
      none.key = key_of(MessageKind::kGradient, next++, edge, stage);
      none.none = true;
      if (auto sent = endpoint->send(kSender, std::move(none)); !sent && !window.over()) {
        return std::move(sent).error();
      }
    }
    while (const auto m = endpoint->take(key_of(MessageKind::kNorms, urgent, 0, kSender))) {
      if (window.open()) delays_ms.push_back(delay_ms(m->bytes.bytes()));
      ++urgent;
    }
    if (auto waited = wait_briefly(*endpoint, 100); !waited) {
      if (!window.over()) return std::move(waited).error();
      break;
    }
  }
  json report = window.report();
  report["delays_ms"] = delays_ms;
  return report;
}

Result<json> receive_weft(const Options& o) {
  std::vector<std::optional<Result<json>>> found(static_cast<size_t>(o.streams));
  std::vector<std::thread> threads;
  std::atomic<int> over = 0;
  for (int32_t i = 1; i <= o.streams; ++i) {
    threads.emplace_back([&, i] { found[static_cast<size_t>(i - 1)] = receive_stage(o, i, over); });
  }
  for (auto& thread : threads) thread.join();
  json sum;
  int64_t bytes = 0;
  double rate = 0;
  for (auto& one : found) {
    if (!one->ok()) return std::move(*one).error();
    const json& j = one->value();
    if (sum.is_null()) sum = j;  // CPU seconds are of the process, not of the stage
    bytes += j["bytes"].get<int64_t>();
    const double seconds = j["seconds"].get<double>();
    if (seconds > 0) rate += static_cast<double>(j["bytes"].get<int64_t>()) / seconds;
  }
  // Each stage's clock starts and ends with a message of its own: rates add up, seconds do not.
  sum["bytes"] = bytes;
  if (rate > 0) sum["seconds"] = static_cast<double>(bytes) / rate;
  return sum;
}

// ---- plain

constexpr size_t kPlainBytes = 256 * 1024;

asio::steady_timer::duration to_duration(double seconds) {
  return std::chrono::duration_cast<asio::steady_timer::duration>(
      std::chrono::duration<double>(seconds));
}

asio::awaitable<void> plain(const Options& o, asio::ssl::context& context, json& report) {
  const auto io = co_await asio::this_coro::executor;
  const auto port = static_cast<uint16_t>(o.role == "send" ? o.to_port : o.port);
  asio::ssl::stream<tcp::socket> stream(io, context);
  if (o.role == "send") {
    co_await stream.next_layer().async_connect({asio::ip::make_address(o.to), port}, use_awaitable);
  } else {
    tcp::acceptor acceptor(io, {asio::ip::make_address(o.host), port});
    co_await acceptor.async_accept(stream.next_layer(), use_awaitable);
  }
  stream.next_layer().set_option(tcp::no_delay(true));
  os::set_congestion_control(stream.next_layer().native_handle(), o.congestion);
  co_await stream.async_handshake(
      o.role == "send" ? asio::ssl::stream_base::client : asio::ssl::stream_base::server,
      use_awaitable);
  std::vector<std::byte> buffer(o.burst > 0 ? static_cast<size_t>(o.message_bytes) : kPlainBytes);
  std::vector<double> delays_ms;
  Window window(o);
  asio::steady_timer timer(io, std::chrono::steady_clock::now());
  if (o.burst > 0) timer.expires_after(to_duration(o.warmup));
  for (uint64_t message = 0; !window.over(); ++message) {
    if (o.role == "send") {
      if (o.burst > 0) {
        co_await timer.async_wait(use_awaitable);
        timer.expires_at(timer.expiry() + to_duration(pause_ms(o, message) / 1000));
        stamp(buffer);
      }
      const auto [ec, n] =
          co_await asio::async_write(stream, asio::buffer(buffer), as_tuple(use_awaitable));
      if (ec) break;
    } else {
      const auto [ec, n] =
          co_await asio::async_read(stream, asio::buffer(buffer), as_tuple(use_awaitable));
      if (ec) break;
      if (o.burst > 0) delays_ms.push_back(delay_ms(buffer));
    }
    window.count(static_cast<int64_t>(buffer.size()));
  }
  report = window.report();
  report["delays_ms"] = delays_ms;
}

Result<json> run_plain(const Options& o) {
  TlsEndpointOptions t;
  const int stage = o.role == "send" ? 0 : 1;
  t.certificate_path = fmt::format("{}/p{}.pem", o.certificates, stage);
  t.key_path = fmt::format("{}/p{}.key", o.certificates, stage);
  t.ca_path = o.certificates + "/ca.pem";
  WEFT_TRY(const auto context, make_tls_context(t));
  asio::io_context io(1);
  json report;
  std::exception_ptr failed;
  asio::co_spawn(io, plain(o, *context, report), [&](std::exception_ptr e) { failed = e; });
  io.run();
  if (failed) std::rethrow_exception(failed);
  return report;
}

// ---- seal

Result<json> seal(const Options& o) {
  constexpr int kRecord = 16 * 1024;
  std::vector<unsigned char> in(kRecord), out(kRecord), key(16), nonce(12), tag(16);
  EVP_CIPHER_CTX* sealer = EVP_CIPHER_CTX_new();
  EVP_CIPHER_CTX* opener = EVP_CIPHER_CTX_new();
  EVP_EncryptInit_ex(sealer, EVP_aes_128_gcm(), nullptr, key.data(), nonce.data());
  EVP_DecryptInit_ex(opener, EVP_aes_128_gcm(), nullptr, key.data(), nonce.data());
  const auto rate = [&](bool seals, bool opens) {
    const double start = monotonic_seconds();
    int64_t records = 0;
    double now = start;
    for (; now - start < o.seconds; now = monotonic_seconds()) {
      for (int i = 0; i < 64; ++i, ++records) {
        int n = 0;
        std::memcpy(nonce.data(), &records, sizeof records);
        if (seals) {
          EVP_EncryptInit_ex(sealer, nullptr, nullptr, nullptr, nonce.data());
          EVP_EncryptUpdate(sealer, out.data(), &n, in.data(), kRecord);
          EVP_EncryptFinal_ex(sealer, out.data(), &n);
          EVP_CIPHER_CTX_ctrl(sealer, EVP_CTRL_GCM_GET_TAG, 16, tag.data());
        }
        if (opens) {
          EVP_DecryptInit_ex(opener, nullptr, nullptr, nullptr, nonce.data());
          EVP_DecryptUpdate(opener, in.data(), &n, out.data(), kRecord);
          EVP_CIPHER_CTX_ctrl(opener, EVP_CTRL_GCM_SET_TAG, 16, tag.data());
          (void)EVP_DecryptFinal_ex(opener, in.data(), &n);
        }
      }
    }
    return static_cast<double>(records) * kRecord / (now - start);
  };
  const json report{
      {"both", rate(true, true)}, {"seal", rate(true, false)}, {"open", rate(false, true)}};
  EVP_CIPHER_CTX_free(sealer);
  EVP_CIPHER_CTX_free(opener);
  return report;
}

Result<json> run(const Options& o) {
  if (o.what == "seal") return seal(o);
  if (o.what == "line") return json{{"nanoseconds", cache_line_round_trip_ns()}};
  if (o.what == "plain") return run_plain(o);
  return o.role == "send" ? send_weft(o) : receive_weft(o);
}

}  // namespace
}  // namespace weft::net

int main(int argc, char** argv) {
  weft::log_init("bench-transport", weft::LogLevel::kWarning, false);
  try {
    auto options = weft::net::parse(argc, argv);
    auto done = options.ok() ? weft::net::run(*options) : std::move(options).error();
    if (!done.ok()) {
      fmt::print(stderr, "bench-transport: {}\n", done.error().text());
      return 1;
    }
    fmt::print("{}\n", done->dump());
  } catch (const std::exception& e) {
    fmt::print(stderr, "bench-transport: {}\n", e.what());
    return 1;
  }
}

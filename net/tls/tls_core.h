// TlsCore: everything of a TlsEndpoint that lives on its I/O thread: the acceptor, one Link a
// neighbour, one Connection a TCP stream, and the coroutines that run them. Only start(), begin(),
// post_send(), post_taken(), leave() and the destructor are called from the compute thread.
//
// Coroutines: accept_loop (1), dial_loop (1 a link we dial), tick_loop (1, the watchdog of all),
// serve (1 an incoming connection), read_loop and write_loop (2 a live connection). A connection
// ends by close(), which makes its pending operations fail; whoever notices calls lost().
#pragma once

#include <boost/asio.hpp>
#include <boost/asio/ssl/context.hpp>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/os/net.h"
#include "net/frame/link_rules.h"
#include "net/frame/message_inbox.h"
#include "net/frame/message_outbox.h"
#include "net/frame/run_meter.h"
#include "net/tls/congestion.h"
#include "net/tls/mailbox.h"
#include "net/tls/pacer.h"
#include "net/tls/tls_endpoint.h"
#include "net/tls/tls_stream.h"
#include "net/tls/warm_up.h"

namespace weft::net {

namespace asio = boost::asio;
template <typename T>
using Task = asio::awaitable<T>;

struct Link;

struct Connection {
  Connection(asio::io_context& io, asio::ssl::context& context)
      : stream(io, context.native_handle()), wake(io, asio::steady_timer::time_point::max()) {}
  asio::ip::tcp::socket& socket() { return stream.socket(); }
  void close();
  void push_control(Frame frame);

  TlsStream stream;
  asio::steady_timer wake;      // cancelled when there is something to write
  std::deque<Frame> control;    // goes before any message
  std::vector<std::byte> head;  // of the frame that goes next
  size_t handled = 0;           // bytes of the frame that was read last
  Pacer pacer;
  WarmUp warm_up;
  CongestionChoice congestion;
  Link* link = nullptr;     // once authenticated
  int64_t deadline_ms = 0;  // closed by the watchdog then; 0: none
  int64_t last_heard_ms = 0, last_ping_ms = 0, up_since_ms = 0;
  PingTimes pings;
  bool active = false;   // hellos exchanged
  bool leaving = false;  // a goodbye is the last frame
  bool closed = false;
};
using ConnectionPtr = std::shared_ptr<Connection>;

struct Link {
  Link(const LinkRules& rules, const TlsEndpointOptions& options, int32_t other,
       const BufferPool& pool, asio::io_context& io)
      : stage(other),
        outbox(rules, options.stage, other),
        inbox(rules, other, options.stage, options.epoch, options.max_message_bytes, pool),
        changed(io, asio::steady_timer::time_point::max()) {}

  const int32_t stage;
  std::string peer, host;
  uint16_t port = 0;
  bool dials = false;
  MessageOutbox outbox;
  MessageInbox inbox;
  RunMeter runs;
  LatelyLeast trip;  // round trips
  WayBack way_back;
  ConnectionPtr connection;    // authenticated; at most one
  asio::steady_timer changed;  // cancelled when connection changes
  bool ever_up = false, left = false;
  uint64_t message_bytes = 0;  // that a micro-batch sends, or of the largest message so far
  bool progressed = false;     // the latest connection carried something of a message
  int32_t violations = 0;      // protocol errors on this link, either side's
  int64_t last_heard_ms = 0, left_ms = 0;
  int64_t queued = 0;        // messages handed to the outbox and not released
  std::string name() const;  // "stage 2 (peer abc)"
};

class TlsCore {
 public:
  TlsCore(TlsEndpointOptions options, std::unique_ptr<asio::ssl::context> context);
  ~TlsCore();

  Status start();
  uint16_t port() const { return port_; }
  Status begin(const std::vector<Neighbour>& neighbours, bool dialable);
  bool linked(int32_t stage) const { return rules_.neighbours().contains(stage); }
  const LinkRules& rules() const { return rules_; }
  const TlsEndpointOptions& options() const { return options_; }
  void post_send(int32_t to_stage, Message message);
  void post_taken(const MessageKey& key);
  void leave(GoodbyeReason reason, const std::string& text);
  Mailbox& mailbox() { return mailbox_; }

 private:
  void run();
  void spawn(Task<void> task);
  void fail(Error error);
  int64_t now_ms() const { return clock_.monotonic_ms(); }

  // tls_core.cpp: links
  Task<void> accept_loop();
  Task<void> serve(ConnectionPtr connection);
  Task<void> dial_loop(Link* link);
  Task<Status> dial(Link* link);
  Task<Status> reach(Link* link, ConnectionPtr connection);
  Task<Status> agree(Link* link, ConnectionPtr connection);
  Task<void> tick_loop();
  void tick(Link& link, int64_t now);
  void note_large(Link& link, uint64_t bytes);
  ConnectionPtr make_connection();
  void adopt(Link& link, const ConnectionPtr& connection);
  void lost(const ConnectionPtr& connection, const std::string& why);

  // tls_session.cpp: one connection, what arrives
  Task<Status> secure(ConnectionPtr connection, bool server, Link* expected);
  Task<Status> refuse(ConnectionPtr connection, GoodbyeReason reason, Error error);
  Task<Status> send_hello(ConnectionPtr connection);
  Task<Result<HelloFrame>> read_hello(ConnectionPtr connection);
  Status check_hello(const Link& link, const HelloFrame& hello) const;
  Result<Link*> check_certificate(Connection& connection, const Link* expected);
  void activate(const ConnectionPtr& connection, const HelloFrame& hello);
  Task<Status> gather(ConnectionPtr connection, size_t least, size_t most);
  Task<Status> read_frame(ConnectionPtr connection, DecodedFrame* out);
  Task<void> read_loop(ConnectionPtr connection);
  void measure(Connection& connection, const MessageKey& acknowledged, double waited_s);
  Status handle(Connection& connection, DecodedFrame& decoded);
  Status handle_arrival(Connection& connection, Result<MessageInbox::Arrival> arrival);
  void handle_goodbye(Connection& connection, const GoodbyeFrame& goodbye);
  void release(Link& link);

  // tls_send.cpp: one connection, what goes
  Task<void> write_loop(ConnectionPtr connection);
  TlsStream::ErrorCode fill(Connection& connection);
  bool has_frame(const Link& link) const;
  void wake_others(const Link& link);
  void count(const MessageKey& key, size_t frame_bytes);
  static size_t write_bytes(const Connection& connection);
  static void limit_unsent(Connection& connection);
  void warm_up(Connection& connection);
  void observe(Connection& connection);
  void start_anew(Connection& connection);
  void fill_further(Connection& connection, const os::TcpProgress& progress);
  void set_pace(Connection& connection);
  void pace(Connection& connection, const os::TcpProgress& progress);
  void wake(Link& link);

  const TlsEndpointOptions options_;
  const LinkRules rules_;
  const SystemClock clock_;
  Mailbox mailbox_;
  BufferPool pool_;
  std::unique_ptr<asio::ssl::context> context_;
  asio::io_context io_{1};  // outlives every socket and timer below
  std::map<int32_t, std::unique_ptr<Link>> links_;
  std::set<ConnectionPtr> connections_;  // every open one
  size_t handshakes_ = 0;                // incoming, not yet authenticated
  int64_t refused_ = 0, last_tick_ms_ = 0, last_trim_ms_ = 0;
  uint16_t port_ = 0;
  bool stopping_ = false;
  asio::executor_work_guard<asio::io_context::executor_type> work_{io_.get_executor()};
  std::unique_ptr<asio::ip::tcp::acceptor> acceptor_;
  std::thread thread_;
};

}  // namespace weft::net

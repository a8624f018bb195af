#include "broker/loop.h"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <thread>

#include "base/os/signals.h"

namespace weft::broker {

namespace asio = boost::asio;

struct Loop::Impl {
  asio::io_context context{1};
  asio::executor_work_guard<asio::io_context::executor_type> guard = asio::make_work_guard(context);
  asio::steady_timer timer{context};
  std::thread thread;
  const char* name = "";
  bool stopping = false;  // of the loop's thread

  void arm(int64_t period_ms, std::function<void()> work) {
    timer.expires_after(std::chrono::milliseconds(period_ms));
    timer.async_wait([this, period_ms, work = std::move(work)](boost::system::error_code error) {
      if (error || stopping) return;
      work();
      arm(period_ms, work);
    });
  }
};

Loop::Loop(const char* name) : impl_(std::make_unique<Impl>()) {
  impl_->name = name;
}

void Loop::start() {
  impl_->thread = std::thread([this] {
    os::name_thread(impl_->name);
    impl_->context.run();
  });
}

Loop::~Loop() {
  stop();
}

void Loop::post(std::function<void()> work) {
  asio::post(impl_->context, std::move(work));
}

void Loop::every_ms(int64_t period_ms, std::function<void()> work) {
  post([this, period_ms, work = std::move(work)]() mutable {
    impl_->arm(period_ms, std::move(work));
  });
}

void Loop::stop() {
  if (!impl_->thread.joinable()) return;
  post([this] {
    impl_->stopping = true;
    impl_->timer.cancel();
    impl_->guard.reset();
  });
  impl_->thread.join();
}

}  // namespace weft::broker

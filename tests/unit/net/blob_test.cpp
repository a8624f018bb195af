// The blob store and its transfers: resumed, verified, and safe from liars and hostile names.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <thread>

#include "base/hash.h"
#include "base/os/locked_file.h"
#include "base/rng.h"
#include "http_fixture.h"
#include "net/blob/blob_store.h"

namespace weft::net {
namespace {

std::string content_of(size_t bytes, uint64_t seed = 1) {
  Rng rng(seed);
  std::string out(bytes, '\0');
  for (char& c : out) c = char(rng.next());
  return out;
}
std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}
BlobStore fresh_store(const std::string& name) {
  return BlobStore::open(Cluster::fresh("blobs_" + name)).value();
}
std::string stored(const BlobStore& store, const std::string& name) {
  return os::read_file(store.path_of(name)).value();
}

TEST(BlobStoreTest, PutsListsAndRemoves) {
  BlobStore store = fresh_store("put");
  const std::string content = content_of(300000);
  const std::string name = store.put(bytes_of(content)).value();
  EXPECT_EQ(name, sha256_hex(content));
  EXPECT_EQ(store.put(bytes_of(content)).value(), name);
  EXPECT_EQ(stored(store, name), content);
  EXPECT_EQ(store.size_of(name).value(), content.size());
  const std::string other = store.put(bytes_of("other")).value();
  EXPECT_EQ(stored(store, other), "other");
  EXPECT_THAT(store.list(), ::testing::UnorderedElementsAre(name, other));
  EXPECT_TRUE(store.remove(name).ok());
  EXPECT_FALSE(store.has(name));
}

TEST(BlobStoreTest, RefusesNamesThatAreNoHashes) {
  BlobStore store = fresh_store("names");
  for (const std::string& name :
       {std::string(), std::string("../../etc/passwd"), std::string(64, 'A'),
        std::string(63, 'a') + "/", std::string("partial")}) {
    EXPECT_FALSE(store.has(name));
    EXPECT_FALSE(store.size_of(name).ok());
    EXPECT_FALSE(store.append(name, 0, {}).ok());
    EXPECT_FALSE(store.finish(name).ok());
    EXPECT_FALSE(store.remove(name).ok());
    EXPECT_TRUE(store.path_of(name).empty());
  }
}

TEST(BlobStoreTest, AppendsOnlyWhereTheReceivedBytesEnd) {
  BlobStore store = fresh_store("append");
  const std::string content = content_of(1000), name = sha256_hex(content);
  ASSERT_TRUE(store.append(name, 0, bytes_of(content).first(600)).ok());
  EXPECT_EQ(store.partial_size(name), 600u);
  EXPECT_EQ(store.append(name, 500, bytes_of(content).subspan(500)).error().code, Code::kExists);
  EXPECT_EQ(store.append(name, 700, bytes_of(content).subspan(700)).error().code, Code::kExists);
  EXPECT_FALSE(store.has(name));
  ASSERT_TRUE(store.append(name, 600, bytes_of(content).subspan(600)).ok());
  ASSERT_TRUE(store.finish(name).ok());
  EXPECT_TRUE(store.finish(name).ok());
  EXPECT_EQ(stored(store, name), content);
  EXPECT_EQ(store.append(name, 0, bytes_of(content)).error().code, Code::kExists);
}

TEST(BlobStoreTest, WhatDoesNotHashToItsNameIsDiscarded) {
  BlobStore store = fresh_store("corrupt");
  const std::string name = sha256_hex("right");
  ASSERT_TRUE(store.append(name, 0, bytes_of("wrong")).ok());
  EXPECT_EQ(store.finish(name).error().code, Code::kCorrupt);
  EXPECT_EQ(store.partial_size(name), 0u);
  EXPECT_FALSE(store.has(name));
}

TEST(BlobStoreTest, ConcurrentWritersOfOneBlobAllSucceed) {
  BlobStore store = fresh_store("race");
  const std::string content = content_of(200000), name = sha256_hex(content);
  const auto write = [&] {
    while (!store.has(name)) {
      const uint64_t at = std::min<uint64_t>(store.partial_size(name), content.size());
      const size_t n = std::min<size_t>(7000, content.size() - at);
      (void)store.append(name, at, bytes_of(content).subspan(at, n)).ok();
      if (store.partial_size(name) >= content.size()) (void)store.finish(name).ok();
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(write);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(stored(store, name), content);
}

// Where a store keeps what has arrived so far.
os::Path partial_of(const BlobStore& store, const std::string& name) {
  return store.path_of(name).parent_path().parent_path() / "partial" / name;
}

TEST(BlobStoreTest, NobodyWaitsForAnotherWriter) {
  BlobStore store = fresh_store("busy");
  const std::string content = content_of(1000), name = sha256_hex(content);
  ASSERT_TRUE(store.append(name, 0, bytes_of(content)).ok());
  {
    const auto held = os::LockedFile::open(partial_of(store, name), false);
    ASSERT_TRUE(held.ok());
    EXPECT_EQ(store.append(name, 1000, {}).error().code, Code::kUnavailable);
    EXPECT_EQ(store.finish(name).error().code, Code::kUnavailable);
  }
  EXPECT_TRUE(store.append(name, 1000, {}).ok());
  EXPECT_TRUE(store.finish(name).ok());
}

TEST(BlobStoreTest, PatienceOutlastsARequestThatTimesOut) {
  EXPECT_GE(TransferOptions().patience_ms, 2 * HttpClientOptions().timeout_ms);
}

class BlobHttpTest : public ::testing::Test {
 protected:
  std::unique_ptr<HttpServer> serve(BlobStore& store, bool allow_put = true,
                                    uint64_t max_bytes = 1 << 30) {
    return HttpServer::start(cluster_.server_options(),
                             [&store, allow_put, max_bytes](HttpRequest request, HttpReply reply) {
                               if (!serve_blob(store, request, allow_put, max_bytes, reply)) {
                                 reply(problem_response(make_error(Code::kNotFound, "no route")));
                               }
                             })
        .value();
  }
  // Answers every range with bytes of `content`, whatever is asked for.
  std::unique_ptr<HttpServer> lie(const std::string& content) {
    return HttpServer::start(cluster_.server_options(),
                             [content](HttpRequest request, const HttpReply& reply) {
                               HttpResponse response;
                               const std::string range = request.headers["range"].substr(6);
                               const size_t first = std::stoul(range),
                                            last = std::stoul(range.substr(range.find('-') + 1));
                               response.status = 206;
                               response.headers["content-range"] =
                                   "bytes " + range + "/" + std::to_string(content.size());
                               response.body = content.substr(first, last - first + 1);
                               reply(std::move(response));
                             })
        .value();
  }
  HttpClientOptions client(const HttpServer& server) const {
    return cluster_.client_options(server.port());
  }
  os::Path file_of(const std::string& content) const {
    const os::Path path = os::Path(::testing::TempDir()) / "weft_blob_upload";
    EXPECT_TRUE(os::write_file_atomic(path, std::string_view(content)).ok());
    return path;
  }

  Cluster cluster_{"blob"};
  const std::string content_ = content_of(kBlobChunkBytes * 2 + 12345);
  const std::string name_ = sha256_hex(content_);
};

TEST_F(BlobHttpTest, UploadsOnceAndResumes) {
  BlobStore store = fresh_store("upload");
  const auto server = serve(store);
  HttpClient http(client(*server));
  ASSERT_TRUE(store.append(name_, 0, bytes_of(content_).first(kBlobChunkBytes + 1)).ok());
  const auto sent = upload_blob(http, name_, file_of(content_));
  ASSERT_TRUE(sent.ok()) << sent.error().message;
  EXPECT_EQ(*sent, content_.size() - kBlobChunkBytes - 1);
  EXPECT_EQ(stored(store, name_), content_);
  EXPECT_EQ(upload_blob(http, name_, file_of(content_)).value(), 0u);
}

TEST_F(BlobHttpTest, UploadReplacesACorruptBeginning) {
  BlobStore store = fresh_store("upload_corrupt");
  const auto server = serve(store);
  HttpClient http(client(*server));
  ASSERT_TRUE(store.append(name_, 0, bytes_of(std::string(5000, 'x'))).ok());
  ASSERT_TRUE(upload_blob(http, name_, file_of(content_)).ok());
  EXPECT_EQ(stored(store, name_), content_);
}

TEST_F(BlobHttpTest, CorruptForbiddenAndOversizeUploadsAreRejected) {
  BlobStore store = fresh_store("reject");
  const auto server = serve(store, true, 1000);
  HttpClient http(client(*server));
  const std::string name = sha256_hex("right");
  EXPECT_EQ(upload_blob(http, name, file_of("wrong")).error().code, Code::kCorrupt);
  EXPECT_FALSE(store.has(name));
  EXPECT_EQ(upload_blob(http, name, file_of(std::string(1001, 'x'))).error().code, Code::kTooLarge);
  const std::string path = "/api/v1/blobs/" + name;
  EXPECT_EQ(http.request("PUT", path + "?offset=0&total=2", "abc")->status, 400);
  EXPECT_EQ(http.request("PUT", path + "?offset=0", "abc")->status, 400);
  EXPECT_EQ(http.request("PUT", path + "?offset=-1&total=2", "abc")->status, 400);
  EXPECT_EQ(http.request("PUT", path + "?offset=18446744073709551615&total=2", "abc")->status, 400);
  EXPECT_EQ(http.request("PUT", path + "?offset=3&total=9", "abc")->status, 409);
  EXPECT_EQ(http.request("POST", path, "abc")->status, 405);
  EXPECT_EQ(http.request("GET", "/api/v1/blobs/..%2f..%2fetc")->status, 400);
  EXPECT_EQ(http.request("GET", "/api/v1/jobs")->status, 404);
  const auto closed = serve(store, false);
  HttpClient other(client(*closed));
  EXPECT_EQ(upload_blob(other, name, file_of("right")).error().code, Code::kDenied);
}

TEST_F(BlobHttpTest, RangesAreHonoured) {
  BlobStore store = fresh_store("range");
  const std::string name = store.put(bytes_of("0123456789")).value();
  const auto server = serve(store);
  HttpClient http(client(*server));
  const auto get = [&](const std::string& range) {
    return http.request("GET", "/api/v1/blobs/" + name, {}, {{"range", range}}).value();
  };
  EXPECT_EQ(get("bytes=2-4").body, "234");
  EXPECT_EQ(get("bytes=2-4").headers.at("content-range"), "bytes 2-4/10");
  EXPECT_EQ(get("bytes=7-").body, "789");
  EXPECT_EQ(get("bytes=-2").body, "89");
  EXPECT_EQ(get("bytes=5-100").body, "56789");
  EXPECT_EQ(get("bytes=10-11").status, 416);
  for (const char* whole : {"bytes=4-2", "bytes=1-2,4-5", "lines=1-2", "bytes=x-", "bytes="}) {
    EXPECT_EQ(get(whole).body, "0123456789") << whole;
  }
}

TEST_F(BlobHttpTest, FetchSkipsLiarsAndAbsentSourcesAndResumes) {
  BlobStore origin = fresh_store("origin"), empty = fresh_store("empty"),
            target = fresh_store("to");
  ASSERT_TRUE(origin.put(bytes_of(content_)).ok());
  const auto good = serve(origin), absent = serve(empty),
             liar = lie(content_of(content_.size(), 9));
  HttpClientOptions dead = client(*absent);
  dead.port = 1;
  ASSERT_TRUE(target.append(name_, 0, bytes_of(content_).first(100)).ok());
  const Status fetched = fetch_blob(target, name_, content_.size(),
                                    {dead, client(*absent), client(*liar), client(*good)});
  ASSERT_TRUE(fetched.ok()) << fetched.error().message;
  EXPECT_EQ(stored(target, name_), content_);
}

TEST_F(BlobHttpTest, TransfersWaitForAServerThatComesBack) {
  BlobStore origin = fresh_store("later"), target = fresh_store("later_to");
  auto server = serve(origin);
  const HttpClientOptions where = client(*server);
  server.reset();
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    HttpServerOptions options = cluster_.server_options();
    options.port = where.port;
    server = HttpServer::start(options, [&](HttpRequest request, HttpReply reply) {
               (void)serve_blob(origin, request, true, 1 << 30, reply);
             }).value();
  });
  HttpClient http(where);
  const auto sent = upload_blob(http, name_, file_of(content_));
  later.join();
  ASSERT_TRUE(sent.ok()) << sent.error().message;
  EXPECT_EQ(stored(origin, name_), content_);
  EXPECT_TRUE(fetch_blob(target, name_, content_.size(), {where}).ok());
}

TEST_F(BlobHttpTest, TransfersGiveUpAfterTheirPatienceOrWhenCancelled) {
  BlobStore target = fresh_store("patience");
  const auto server = serve(target);
  HttpClientOptions dead = client(*server);
  dead.port = 1;
  HttpClient http(dead);
  TransferOptions options;
  options.patience_ms = 0;
  EXPECT_EQ(upload_blob(http, name_, file_of(content_), options).error().code, Code::kUnavailable);
  EXPECT_EQ(fetch_blob(target, name_, 9, {dead}, options).error().code, Code::kUnavailable);
  options.patience_ms = 3600000;
  int asked = 0;
  options.cancelled = [&] { return ++asked > 3; };
  EXPECT_EQ(upload_blob(http, name_, file_of(content_), options).error().code, Code::kCancelled);
  asked = 0;
  EXPECT_EQ(fetch_blob(target, name_, 9, {dead}, options).error().code, Code::kCancelled);
  // Between two chunks as well.
  HttpClient alive(client(*server));
  asked = 0;
  options.cancelled = [&] { return ++asked > 2; };
  EXPECT_EQ(upload_blob(alive, name_, file_of(content_), options).error().code, Code::kCancelled);
  EXPECT_EQ(target.partial_size(name_), kBlobChunkBytes);
}

// The whole is there and somebody hashes it: the server says so at once, and the uploader asks
// again without sending bytes, however short its patience with silence is.
TEST_F(BlobHttpTest, AnUploadWaitsWhileTheServerVerifies) {
  BlobStore store = fresh_store("verifying");
  const auto server = serve(store);
  HttpClient http(client(*server));
  ASSERT_TRUE(store.append(name_, 0, bytes_of(content_)).ok());
  std::optional<os::LockedFile> hashing(
      os::LockedFile::open(partial_of(store, name_), false).value());
  EXPECT_EQ(http.request("PUT", "/api/v1/blobs/" + name_ + "?offset=5&total=9", "abc")->status,
            503);
  TransferOptions options;
  options.patience_ms = 1000;
  int asked = 0;
  options.cancelled = [&] {
    if (++asked == 12) hashing.reset();
    return false;
  };
  const auto sent = upload_blob(http, name_, file_of(content_), options);
  ASSERT_TRUE(sent.ok()) << sent.error().message;
  EXPECT_EQ(*sent, 0u);
  EXPECT_GE(asked, 12);
  EXPECT_EQ(stored(store, name_), content_);
}

// What the server verified meanwhile was wrong: sent anew, once.
TEST_F(BlobHttpTest, AnUploadStartsAnewWhenVerifyingFailed) {
  BlobStore store = fresh_store("verified_wrong");
  const auto server = serve(store);
  HttpClient http(client(*server));
  ASSERT_TRUE(store.append(name_, 0, bytes_of(content_of(content_.size(), 9))).ok());
  std::optional<os::LockedFile> hashing(
      os::LockedFile::open(partial_of(store, name_), false).value());
  TransferOptions options;
  int asked = 0;
  options.cancelled = [&] {
    if (++asked == 6) {
      EXPECT_TRUE(hashing->remove().ok());
      hashing.reset();
    }
    return false;
  };
  const auto sent = upload_blob(http, name_, file_of(content_), options);
  ASSERT_TRUE(sent.ok()) << sent.error().message;
  EXPECT_EQ(*sent, content_.size());
  EXPECT_EQ(stored(store, name_), content_);
}

TEST_F(BlobHttpTest, FetchFromLiarsOnlyFailsAndStoresNothing) {
  BlobStore target = fresh_store("lied");
  const auto liar = lie(content_of(content_.size(), 9)), short_liar = lie("short");
  const Status fetched =
      fetch_blob(target, name_, content_.size(), {client(*liar), client(*short_liar)});
  ASSERT_FALSE(fetched.ok());
  EXPECT_EQ(fetched.error().code, Code::kUnavailable);
  EXPECT_FALSE(target.has(name_));
}

TEST_F(BlobHttpTest, EmptyBlobsTravelToo) {
  BlobStore origin = fresh_store("none"), target = fresh_store("none_to");
  const auto server = serve(origin);
  HttpClient http(client(*server));
  const std::string name = sha256_hex("");
  ASSERT_TRUE(upload_blob(http, name, file_of("")).ok());
  EXPECT_TRUE(origin.has(name));
  ASSERT_TRUE(fetch_blob(target, name, 0, {client(*server)}).ok());
  EXPECT_TRUE(target.has(name));
}

}  // namespace
}  // namespace weft::net

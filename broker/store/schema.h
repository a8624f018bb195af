// The tables, as migrations: step i takes a database from version i to i + 1. Never edit a step
// that was released; add one.
#pragma once

#include <array>

namespace weft::broker {

inline constexpr std::array<const char*, 2> kMigrations = {R"(
CREATE TABLE meta(name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE peers(id TEXT PRIMARY KEY, record TEXT NOT NULL);
CREATE TABLE jobs(id TEXT PRIMARY KEY, record TEXT NOT NULL);
CREATE TABLE submissions(job TEXT PRIMARY KEY, body TEXT NOT NULL);
CREATE TABLE events(job TEXT, seq INTEGER, time_ms INTEGER, kind TEXT, message TEXT, data TEXT,
                    PRIMARY KEY(job, seq)) WITHOUT ROWID;
CREATE TABLE decisions(job TEXT, time_ms INTEGER, decision TEXT, reason TEXT);
CREATE INDEX decisions_of_job ON decisions(job);
CREATE TABLE steps(job TEXT, step INTEGER, row TEXT, PRIMARY KEY(job, step)) WITHOUT ROWID;
CREATE TABLE evals(job TEXT, step INTEGER, row TEXT, PRIMARY KEY(job, step)) WITHOUT ROWID;
CREATE TABLE logs(job TEXT, seq INTEGER, stage INTEGER, text TEXT,
                  PRIMARY KEY(job, seq)) WITHOUT ROWID;
CREATE TABLE checkpoints(job TEXT, step INTEGER, record TEXT, PRIMARY KEY(job, step)) WITHOUT ROWID;
CREATE TABLE invites(token_id TEXT PRIMARY KEY, token_sha256 TEXT UNIQUE NOT NULL,
                     expires_ms INTEGER, uses INTEGER, used INTEGER);
CREATE TABLE invite_uses(token_id TEXT, key_fingerprint TEXT, peer TEXT,
                         PRIMARY KEY(token_id, key_fingerprint)) WITHOUT ROWID;
)",
                                                           R"(
CREATE TABLE links(from_peer TEXT, to_peer TEXT, time_ms INTEGER, record TEXT,
                   PRIMARY KEY(from_peer, to_peer)) WITHOUT ROWID;
)"};

}  // namespace weft::broker

// Files; beside std::filesystem the only way to them. Any thread; all errors name the path.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "base/buffer.h"
#include "base/result.h"

namespace weft::os {

using Path = std::filesystem::path;

// The whole file; refused beyond max_bytes.
Result<std::string> read_file(const Path& path, uint64_t max_bytes = uint64_t{1} << 32);

// At most max_bytes from an offset; empty at or beyond the end.
Result<std::string> read_file_from(const Path& path, uint64_t offset, uint64_t max_bytes);

// Writes to a temporary neighbour, syncs, renames: a reader sees the old or the new file, whole.
// mode: permission bits, 0600 for private keys.
Status write_file_atomic(const Path& path, std::span<const std::byte> data, unsigned mode = 0644);
Status write_file_atomic(const Path& path, std::string_view data, unsigned mode = 0644);

// Read-only mapping of a file; the Buffer keeps it mapped.
Result<Buffer> map_file(const Path& path);

Status make_directories(const Path& path, unsigned mode = 0755);
// A new folder of mode 0700 for temporary files, its name beginning with prefix.
Result<Path> make_temporary_directory(const std::string& prefix);
// Removes a file or folder tree; absent is fine.
Status remove_all(const Path& path);

// $XDG_CONFIG_HOME/weft, $XDG_STATE_HOME/weft or their defaults under $HOME.
Path user_config_dir();
Path user_state_dir();

}  // namespace weft::os

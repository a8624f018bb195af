// The one door to protobuf's parser. A program that uses it has protobuf's own log in weft's,
// bounded: the library writes a line for each invalid string a stranger sends. Any thread.
#pragma once

#include <google/protobuf/message_lite.h>

#include <string_view>

namespace weft::net {

// False: the bytes are no such message; then `message` holds anything.
bool parse_message(std::string_view bytes, google::protobuf::MessageLite& message);

}  // namespace weft::net

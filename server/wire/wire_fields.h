// Reading and writing the fields of a protobuf message one by one.
//
// Reading is as strict as protobuf's own parser: CodedInputStream and
// WireFormatLite take tags and lengths of up to ten bytes and cut them to 32
// bits, so that malformed messages would pass.
//
// Thread-safe: pure functions.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "google/protobuf/io/coded_stream.h"

namespace moe {

// The next tag; 0 at the end of the message, and for a malformed one: then
// input.ConsumedEntireMessage() is false.
uint32_t ReadTag(google::protobuf::io::CodedInputStream& input);

// The length of a field. False: malformed, or the field would end behind what
// is around it, so that nobody makes room for what does not come. Requires: the
// input has a limit.
bool ReadLength(google::protobuf::io::CodedInputStream& input, int* length);

// Reads over the value of a field after its tag. False: malformed. Requires:
// the input has a limit.
bool SkipField(google::protobuf::io::CodedInputStream& input, uint32_t tag);

// The tag and the length of a field of `size` bytes.
std::string FieldHead(int field, size_t size);

// Append a field whatever its value, where protobuf would leave out what is 0:
// always as many bytes for the same field.
void AppendDouble(int field, double value, std::string* to);
void AppendFixed32(int field, uint32_t value, std::string* to);

}  // namespace moe

#include "server/wire/wire_fields.h"

#include <limits>
#include <string>

#include "google/protobuf/wire_format_lite.h"

namespace moe {
namespace {

using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;
using Wire = google::protobuf::internal::WireFormatLite;

// The most bytes that a tag or a length takes.
constexpr int kMaxBytes = 5;

// After the tag that starts a group; up to the one that ends it.
bool SkipGroup(CodedInputStream& input, int field) {
  if (!input.IncrementRecursionDepth()) return false;
  const uint32_t end = Wire::MakeTag(field, Wire::WIRETYPE_END_GROUP);
  while (const uint32_t tag = ReadTag(input)) {
    if (tag == end) {
      input.DecrementRecursionDepth();
      return true;
    }
    if (!SkipField(input, tag)) return false;
  }
  return false;
}

}  // namespace

uint32_t ReadTag(CodedInputStream& input) {
  const int begin = input.CurrentPosition();
  const uint32_t tag = input.ReadTag();
  return input.CurrentPosition() - begin <= kMaxBytes ? tag : 0;
}

bool ReadLength(CodedInputStream& input, int* length) {
  const int begin = input.CurrentPosition();
  uint64_t read = 0;
  if (!input.ReadVarint64(&read) ||
      input.CurrentPosition() - begin > kMaxBytes ||
      read > static_cast<uint64_t>(std::numeric_limits<int>::max())) {
    return false;
  }
  *length = static_cast<int>(read);
  return *length <= input.BytesUntilLimit();
}

bool SkipField(CodedInputStream& input, uint32_t tag) {
  const int field = Wire::GetTagFieldNumber(tag);
  if (field == 0) return false;
  switch (Wire::GetTagWireType(tag)) {
    case Wire::WIRETYPE_VARINT: {
      uint64_t value = 0;
      return input.ReadVarint64(&value);
    }
    case Wire::WIRETYPE_FIXED64: {
      uint64_t value = 0;
      return input.ReadLittleEndian64(&value);
    }
    case Wire::WIRETYPE_FIXED32: {
      uint32_t value = 0;
      return input.ReadLittleEndian32(&value);
    }
    case Wire::WIRETYPE_LENGTH_DELIMITED: {
      int length = 0;
      return ReadLength(input, &length) && input.Skip(length);
    }
    case Wire::WIRETYPE_START_GROUP:
      return SkipGroup(input, field);
    default:
      return false;
  }
}

std::string FieldHead(int field, size_t size) {
  uint8_t head[15];  // 5 of the tag, 10 of the length
  uint8_t* end = CodedOutputStream::WriteVarint32ToArray(
      Wire::MakeTag(field, Wire::WIRETYPE_LENGTH_DELIMITED), head);
  end = CodedOutputStream::WriteVarint64ToArray(size, end);
  return std::string(head, end);
}

void AppendDouble(int field, double value, std::string* to) {
  uint8_t bytes[5 + sizeof(value)];  // 5 of the tag
  uint8_t* end = Wire::WriteDoubleToArray(field, value, bytes);
  to->append(bytes, end);
}

void AppendFixed32(int field, uint32_t value, std::string* to) {
  uint8_t bytes[5 + sizeof(value)];
  uint8_t* end = Wire::WriteFixed32ToArray(field, value, bytes);
  to->append(bytes, end);
}

}  // namespace moe

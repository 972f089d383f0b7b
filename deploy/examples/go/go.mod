module examples

go 1.22

require (
	google.golang.org/grpc v1.65.0
	google.golang.org/protobuf v1.34.2
)

// Sends a batch by moe.v1.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"log"
	"os"

	pb "examples/moev1"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

func main() {
	connection, err := grpc.NewClient(os.Args[1], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	rows := make([]float32, 2*256)
	for i := range rows {
		rows[i] = float32(float64(i%7) / 7)
	}
	var data bytes.Buffer
	binary.Write(&data, binary.LittleEndian, rows)
	response, err := pb.NewMoeServiceClient(connection).Forward(context.Background(), &pb.ForwardRequest{
		Model:        "demo",
		HiddenStates: &pb.Tensor{Dtype: pb.DType_F32, Shape: []int64{2, 256}, Data: data.Bytes()},
	})
	if err != nil {
		log.Fatal(err)
	}
	binary.Read(bytes.NewReader(response.Output.Data), binary.LittleEndian, rows)
	shape := response.Output.Shape
	fmt.Printf("output [%d,%d]: %.5f %.5f %.5f %.5f ...\n", shape[0], shape[1], rows[0], rows[1], rows[2], rows[3])
}

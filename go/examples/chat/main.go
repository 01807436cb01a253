// Chats with a model, a line at a time:  go run ./examples/chat MODEL.gguf
package main

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"os"

	"millrace"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: chat MODEL.gguf")
	}
	engine, err := millrace.Open(millrace.Options{Model: os.Args[1]})
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close()
	var messages []millrace.Message
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		messages = append(messages, millrace.Message{Role: "user", Content: lines.Text()})
		request := millrace.NewRequest("")
		request.Messages = messages
		answer, err := engine.Generate(context.Background(), request, func(piece string) bool {
			fmt.Print(piece)
			return true
		})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("\n[%.1f tokens/s]\n", float64(answer.AnswerTokens)/answer.AnswerSeconds)
		messages = append(messages, millrace.Message{Role: "assistant", Content: answer.Text})
	}
}

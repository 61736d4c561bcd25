// A consumer of a queue over HTTP, which runs one job at a time; start several to run more.
// docs/howto/http-consumers.md has the protocol.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"net/url"
	"os/signal"
	"syscall"
	"time"
)

const lease = 30 // seconds

type claim struct {
	ID    string          `json:"id"`
	Item  json.RawMessage `json:"item"`
	Token string          `json:"token"`
}

type queue struct{ route, token string }

func newQueue(server, name, token string) queue {
	return queue{server + "/v1/queues/" + url.PathEscape(name), token}
}

// post repeats a request while the server cannot answer it, and returns the status.
func (q queue) post(ctx context.Context, action string, body, result any) (int, error) {
	data, err := json.Marshal(body)
	if err != nil {
		return 0, err
	}
	for pause := time.Second; ; pause *= 2 {
		status, err := q.try(ctx, action, data, result)
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		if err == nil && status != 429 && status < 500 {
			return status, nil
		}
		if pause > 30*time.Second {
			pause = 30 * time.Second
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(pause):
		}
	}
}

func (q queue) try(ctx context.Context, action string, data []byte, result any) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, 60*time.Second) // longer than a long poll
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, "POST", q.route+"/"+action, bytes.NewReader(data))
	if err != nil {
		return 0, err
	}
	request.Header.Set("Content-Type", "application/json")
	if q.token != "" {
		request.Header.Set("Authorization", "Bearer "+q.token)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	if response.StatusCode == 200 && result != nil {
		err = json.NewDecoder(response.Body).Decode(result)
	}
	return response.StatusCode, err
}

// consume calls handle for each job until ctx is done. The context of a handler ends if the lease is lost.
func (q queue) consume(ctx context.Context, handle func(context.Context, claim) (any, error)) error {
	for {
		var answer struct{ Claims []claim }
		status, err := q.post(ctx, "claim", map[string]any{"wait": 20, "lease": lease}, &answer)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if status != 200 {
			return fmt.Errorf("claim: status %d", status)
		}
		for _, job := range answer.Claims {
			q.work(job, handle)
		}
	}
}

func (q queue) work(job claim, handle func(context.Context, claim) (any, error)) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(lease * time.Second / 3):
			}
			body := map[string]any{"token": job.Token, "lease": lease}
			if status, err := q.post(ctx, "extend", body, nil); err == nil && status == 409 {
				cancel()
			}
		}
	}()
	result, err := handle(ctx, job)
	if ctx.Err() != nil {
		log.Printf("%s: the lease was lost", job.ID)
		return
	}
	action, body := "ack", map[string]any{"token": job.Token, "result": result}
	if err != nil {
		action, body = "nack", map[string]any{"token": job.Token, "error": err.Error()}
	}
	if status, err := q.post(ctx, action, body, nil); err != nil || status >= 400 {
		log.Printf("%s: %s: status %d, %v", job.ID, action, status, err)
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	err := newQueue("http://127.0.0.1:8080", "mail", "").consume(ctx,
		func(ctx context.Context, job claim) (any, error) {
			fmt.Println(string(job.Item))
			return nil, nil
		})
	if err != nil {
		log.Fatal(err)
	}
}

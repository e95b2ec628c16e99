// Command kube-controller-manager runs those of Kubernetes' controllers that an instance needs. Kubernetes' own command of
// this name holds fifty of them, and parts of the kubelet and of the scheduler with them: 309 packages more to compile. The flags are those of Kubernetes' command, as far as an instance sets them, with the same meaning and defaults.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	"k8s.io/klog/v2"
)

const shutdownTimeout = 2 * time.Second

// options are the flags.
type options struct {
	controllers           []string
	kubeconfig            string
	ownCredentials        bool
	serviceAccountKey     string
	rootCA                string
	signingCertificate    string
	signingKey            string
	signingDuration       time.Duration
	qps                   float64
	burst                 int
	bindAddress           string
	securePort            int
	certificate, key      string
	leaderElect, profiled bool
}

func parse(arguments []string) (*options, error) {
	var o options
	var listed string
	flags := flag.NewFlagSet("kube-controller-manager", flag.ContinueOnError)
	flags.StringVar(&listed, "controllers", strings.Join(known(), ","), "the controllers to run, separated by commas")
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "the API server, and who asks it")
	flags.BoolVar(&o.ownCredentials, "use-service-account-credentials", false, "each controller asks in the name of a service account of its own")
	flags.StringVar(&o.serviceAccountKey, "service-account-private-key-file", "", "signs the tokens of service accounts")
	flags.StringVar(&o.rootCA, "root-ca-file", "", "goes into the secrets of service accounts' tokens; that of the kubeconfig unless set")
	flags.StringVar(&o.signingCertificate, "cluster-signing-kube-apiserver-client-cert-file", "", "signs clients' certificates")
	flags.StringVar(&o.signingKey, "cluster-signing-kube-apiserver-client-key-file", "", "the key of that certificate")
	flags.DurationVar(&o.signingDuration, "cluster-signing-duration", 365*24*time.Hour, "the longest life of a signed certificate")
	flags.Float64Var(&o.qps, "kube-api-qps", 20, "requests a second")
	flags.IntVar(&o.burst, "kube-api-burst", 30, "requests at once")
	flags.StringVar(&o.bindAddress, "bind-address", "0.0.0.0", "where /healthz is served")
	flags.IntVar(&o.securePort, "secure-port", 10257, "the port of /healthz; 0 serves nothing")
	flags.StringVar(&o.certificate, "tls-cert-file", "", "the certificate of /healthz")
	flags.StringVar(&o.key, "tls-private-key-file", "", "the key of that certificate")
	flags.BoolVar(&o.leaderElect, "leader-elect", true, "must be false: this program runs alone")
	flags.BoolVar(&o.profiled, "profiling", true, "must be false: there is nothing to profile at")
	if err := flags.Parse(arguments); err != nil {
		return nil, err
	}
	o.controllers = strings.Split(listed, ",")
	return &o, o.check(flags.Args())
}

func (o *options) check(words []string) error {
	if len(words) > 0 {
		return fmt.Errorf("takes no arguments, got %q", words)
	}
	for _, name := range o.controllers {
		if !slices.Contains(known(), name) {
			return fmt.Errorf("--controllers: %q is not built in; there are %s", name, strings.Join(known(), ", "))
		}
	}
	if o.leaderElect || o.profiled {
		return errors.New("--leader-elect and --profiling must be false: this program has neither")
	}
	return nil
}

func main() {
	chosen, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
		defer stop()
		err = run(ctx, chosen)
	}
	if err != nil {
		klog.ErrorS(err, "kube-controller-manager ends")
		klog.FlushAndExit(klog.ExitFlushTimeout, 1)
	}
}

// run builds and runs every controller until the context ends.
func run(ctx context.Context, o *options) error {
	var healthy atomic.Bool
	if o.securePort != 0 {
		if err := serveHealth(ctx, o, &healthy); err != nil {
			return err
		}
	}
	shared, err := newShared(ctx, o)
	if err != nil {
		return err
	}
	var loops []loop
	for _, name := range o.controllers {
		made, err := constructors[name](ctx, shared)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		loops = append(loops, made...)
	}
	shared.start(ctx)
	var running sync.WaitGroup
	for _, one := range loops {
		running.Go(func() { one(ctx) })
	}
	healthy.Store(true)
	<-ctx.Done()
	ended := make(chan struct{})
	go func() { running.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(shutdownTimeout):
		klog.InfoS("controllers still run; ending all the same")
	}
	return nil
}

// serveHealth answers /healthz with 200 once the controllers run, and nothing else.
func serveHealth(ctx context.Context, o *options, healthy *atomic.Bool) error {
	listener, err := net.Listen("tcp", net.JoinHostPort(o.bindAddress, strconv.Itoa(o.securePort)))
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(answer http.ResponseWriter, _ *http.Request) {
		if !healthy.Load() {
			http.Error(answer, "the controllers are not started yet", http.StatusServiceUnavailable)
			return
		}
		_, _ = answer.Write([]byte("ok"))
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		if err := server.ServeTLS(listener, o.certificate, o.key); !errors.Is(err, http.ErrServerClosed) {
			klog.ErrorS(err, "/healthz is served no more")
			klog.FlushAndExit(klog.ExitFlushTimeout, 1)
		}
	}()
	context.AfterFunc(ctx, func() { _ = server.Close() })
	return nil
}

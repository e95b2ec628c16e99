{{/* What every program has: labels, image, a pod that may do nothing it need not. */}}
{{- define "lattice.labels" -}}
app.kubernetes.io/name: {{ .name }}
app.kubernetes.io/part-of: lattice
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
{{- end }}

{{- define "lattice.image" -}}
{{ required "image.repository: name an image with lattice-hpc installed" .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* A Deployment: name, replicas, resources, args, metrics port, port for people, port for agents, and a list of secrets to mount under /certificates, and the room
     for records. */}}
{{- define "lattice.deployment" -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels: {{- include "lattice.labels" . | nindent 4 }}
spec:
  replicas: {{ .replicas }}
  selector:
    matchLabels: {app.kubernetes.io/name: {{ .name }}}
  template:
    metadata:
      labels: {{- include "lattice.labels" . | nindent 8 }}
      annotations: {prometheus.io/scrape: "true", prometheus.io/port: {{ .metrics | quote }}, prometheus.io/scheme: {{ ternary "https" "http" (ne .root.Values.metrics.secret "") }}}
    spec:
      serviceAccountName: {{ .name }}
      securityContext:
        runAsNonRoot: true
        runAsUser: 65532
        seccompProfile: {type: RuntimeDefault}
      {{- with .root.Values.nodeSelector }}
      nodeSelector: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .root.Values.tolerations }}
      tolerations: {{- toYaml . | nindent 8 }}
      {{- end }}
      topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: kubernetes.io/hostname
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels: {app.kubernetes.io/name: {{ .name }}}
      containers:
        - name: {{ .name }}
          image: {{ include "lattice.image" .root }}
          imagePullPolicy: {{ .root.Values.image.pullPolicy }}
          command: [{{ .name }}]
          args:
            - --metrics-address=:{{ .metrics }}
            {{- if .root.Values.metrics.secret }}
            - --metrics-certificate=/certificates/metrics/tls.crt
            - --metrics-key=/certificates/metrics/tls.key
            {{- end }}
            - --log-format=json
            - --log-level={{ .root.Values.logLevel }}
            {{- range .args }}
            - {{ . | quote }}
            {{- end }}
          env:
            - name: POD_IP
              valueFrom: {fieldRef: {fieldPath: status.podIP}}
            # the C library gives freed memory back, of which each thread else keeps some for itself
            - {name: MALLOC_ARENA_MAX, value: "2"}
            - {name: MALLOC_TRIM_THRESHOLD_, value: "131072"}
            - {name: MALLOC_MMAP_THRESHOLD_, value: "131072"}
          ports:
            - {name: metrics, containerPort: {{ .metrics }}}
            {{- with .port }}
            - {name: https, containerPort: {{ . }}}
            {{- end }}
            {{- with .agents }}
            - {name: agents, containerPort: {{ . }}}
            {{- end }}
          livenessProbe:
            httpGet: {path: /healthz, port: metrics, scheme: {{ ternary "HTTPS" "HTTP" (ne .root.Values.metrics.secret "") }}}
          readinessProbe:
            httpGet: {path: /readyz, port: metrics, scheme: {{ ternary "HTTPS" "HTTP" (ne .root.Values.metrics.secret "") }}}
          resources: {{- toYaml .resources | nindent 12 }}
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities: {drop: [ALL]}
          {{- if or .secrets .records .root.Values.metrics.secret }}
          volumeMounts:
            {{- range $folder, $secret := .secrets }}
            - {name: {{ $folder }}, mountPath: /certificates/{{ $folder }}, readOnly: true}
            {{- end }}
            {{- if .root.Values.metrics.secret }}
            - {name: metrics, mountPath: /certificates/metrics, readOnly: true}
            {{- end }}
            {{- if .records }}
            - {name: records, mountPath: /var/lib/lattice/scheduler}
            {{- end }}
          {{- end }}
      {{- if or .secrets .records .root.Values.metrics.secret }}
      volumes:
        {{- range $folder, $secret := .secrets }}
        - name: {{ $folder }}
          secret: {secretName: {{ $secret }}}
        {{- end }}
        {{- with .root.Values.metrics.secret }}
        - name: metrics
          secret: {secretName: {{ . }}}
        {{- end }}
        {{- with .records }}
        - name: records
          emptyDir: {sizeLimit: {{ . }}}
        {{- end }}
      {{- end }}
{{- end }}

{{/* A Service on port 443, for agents also on theirs, and a budget that keeps one replica. */}}
{{- define "lattice.service" -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels: {{- include "lattice.labels" . | nindent 4 }}
spec:
  {{- with .type }}
  type: {{ . }}
  {{- end }}
  selector: {app.kubernetes.io/name: {{ .name }}}
  ports:
    - {name: https, port: 443, targetPort: https}
    {{- with .agents }}
    - {name: agents, port: {{ . }}, targetPort: agents}
    {{- end }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels: {{- include "lattice.labels" . | nindent 4 }}
spec:
  minAvailable: 1
  selector:
    matchLabels: {app.kubernetes.io/name: {{ .name }}}
{{- end }}
